"""`relmo cache` and the functions behind it."""

import json
import os
import sys
import time

import pytest
from features.fakes import SENTENCES, FakeFeatures

from relmo.cache import clear_cache, list_cache
from relmo.errors import ConfigError, DataError
from relmo.features.manifest import MANIFEST
from relmo.features.store import FeatureStore
from relmo.text.shards import prepare_corpus

DAY = 86_400


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The user's cache directory."""
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RELMO_CACHE_GB", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def filled(place, tmp_path):
    """A cache with something of every kind, none of it in use: names by kind."""
    stored = FeatureStore().open(FakeFeatures(), SENTENCES)
    stored.close()
    text = tmp_path / "text"
    text.write_text("a text of some words\nand another line\n", encoding="utf-8")
    corpus = prepare(place, text)
    key = corpus.shards[0].key.rpartition("-")[0]
    (place / "small").mkdir()
    (place / "small" / "weights.hdf5").write_bytes(b"0" * 1000)
    (place / "my-notes.txt").write_text("mine")
    return {"features": stored.folder.name, "corpora": key, "models": "small"}


def prepare(place, text):
    return prepare_corpus(
        [str(text)],
        tokenizer="whitespace",
        lines=True,
        language="en",
        cache=place / "corpora",
        workers=1,
    )


def kinds_left():
    return [entry.kind for entry in list_cache().entries]


def age(folder_or_file, days):
    then = time.time() - days * DAY
    os.utime(folder_or_file, (then, then))


# ---- the list -----------------------------------------------------------------------------------


def test_nothing_is_kept_at_first(place):
    contents = list_cache()
    assert contents.entries == ()
    assert contents.n_bytes == 0
    assert not place.exists()
    assert clear_cache().as_dict() == {"removed": [], "in_use": [], "freed_bytes": 0}


def test_everything_that_is_kept_is_listed(filled, place):
    contents = list_cache()
    assert {entry.kind: entry.name for entry in contents.entries} == filled
    features, corpora, models = contents.entries
    on_disk = sum(path.stat().st_size for path in (place / "features").rglob("*.*"))
    assert 0 < features.n_bytes <= on_disk
    assert features.description == "fake: 9 sentences, 31 tokens, 3 × 6, float16"
    assert corpora.n_bytes == sum(p.stat().st_size for p in (place / "corpora").iterdir())
    assert models.n_bytes == 1000
    assert contents.n_bytes == sum(entry.n_bytes for entry in contents.entries)
    assert all(abs(entry.last_used - time.time()) < 60 for entry in contents.entries)
    assert not any(entry.in_use for entry in contents.entries)
    assert contents.max_feature_bytes == 30 * 10**9


def test_the_list_as_json(filled, run, place):
    code, out, err = run("cache", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == list_cache().as_dict()
    assert found["directory"] == str(place)
    assert {entry["kind"]: entry["name"] for entry in found["entries"]} == filled
    assert found["entries"][0]["last_used"].endswith("+00:00")


def test_the_list_for_people(filled, run, place):
    code, out, _ = run("cache")
    assert code == 0
    assert "of at most 30.0 GB" in out
    assert out.splitlines()[-1].startswith("total: ")
    assert str(place) in out
    for name in filled.values():
        assert name[:16] in out


def test_a_long_list_is_cut(place, run):
    (place / "corpora").mkdir(parents=True)
    for i in range(25):
        (place / "corpora" / f"{i:032x}-0.safetensors").touch()
    _, out, _ = run("cache")
    assert out.count("prepared text") == 20
    assert "and 5 more" in out
    assert len(list_cache().entries) == 25


# ---- clearing -----------------------------------------------------------------------------------


def test_features_and_corpora_are_cleared_by_default(filled, run, place):
    before = list_cache().n_bytes
    code, out, err = run("cache", "clear", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {entry["name"] for entry in found["removed"]} == {filled["features"], filled["corpora"]}
    assert found["freed_bytes"] == before - list_cache().n_bytes
    assert kinds_left() == ["models"]
    assert (place / "my-notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["features", "corpora", "models"])
def test_one_kind_is_cleared(filled, run, kind):
    code, out, _ = run("cache", "clear", f"--{kind}")
    assert code == 0
    assert out.startswith("Removed 1 entry: ")
    assert sorted([*kinds_left(), kind]) == sorted(filled)


def test_what_is_named_is_cleared(filled, run):
    run("cache", "clear", filled["corpora"][:6])
    assert kinds_left() == ["features", "models"]
    run("cache", "clear", filled["features"])
    assert kinds_left() == ["models"]
    code, _, err = run("cache", "clear", "small")
    assert code == 2
    assert "'small' is one of the models, but only features and corpora" in err
    assert run("cache", "clear", "small", "--models")[0] == 0
    assert kinds_left() == []


@pytest.mark.parametrize("name", ["nothing", "abc", ""])
def test_unknown_names_are_told(filled, run, name):
    code, _, err = run("cache", "clear", name)
    assert code == 2
    assert "Nothing in the cache is named" in err
    assert len(kinds_left()) == 3


def test_short_beginnings_are_told(filled, run):
    _, _, err = run("cache", "clear", filled["corpora"][:3])
    assert "write 4 or more of its first characters" in err
    assert len(kinds_left()) == 3


def test_a_name_and_a_kind_may_be_bare_strings(filled):
    with pytest.raises(ConfigError, match="is named 'zzzz'"):
        clear_cache("zzzz")
    clear_cache(filled["corpora"], kinds="corpora")
    assert kinds_left() == ["features", "models"]
    clear_cache(kinds="features")
    assert kinds_left() == ["models"]


def test_a_beginning_of_several_names_is_told(place):
    (place / "corpora").mkdir(parents=True)
    for i in range(2):
        (place / "corpora" / f"{i:032x}-0.safetensors").touch()
    with pytest.raises(ConfigError, match="'00000' begins 2 names"):
        clear_cache(["00000"])
    clear_cache([f"{1:032x}"])
    assert [entry.name for entry in list_cache().entries] == [f"{0:032x}"]


def test_only_what_is_old_is_cleared(filled, place, run):
    age(place / "features" / filled["features"] / MANIFEST, days=8)
    for shard in (place / "corpora").iterdir():
        age(shard, days=6)
    assert run("cache", "clear", "--older-than", 9)[1].startswith("Removed 0 entries")
    run("cache", "clear", "--older-than", 7)
    assert kinds_left() == ["corpora", "models"]
    run("cache", "clear", "--older-than", 5)
    assert kinds_left() == ["models"]


def test_features_in_use_stay(filled, run):
    stored = FeatureStore().open(FakeFeatures(), SENTENCES)
    code, out, err = run("cache", "clear", "--features")
    assert code == 0
    assert out.startswith("Removed 0 entries")
    assert f"In use, not removed: {filled['features'][:16]}" in err
    assert "in use" in run("cache")[1]
    assert stored.batch(SENTENCES).values.any()
    stored.close()
    assert [entry.name for entry in clear_cache().removed][:1] == [filled["features"]]


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_text_that_is_being_trained_on_stays(filled, place, tmp_path):
    corpus = prepare(place, tmp_path / "text")
    assert [entry.name for entry in clear_cache().in_use] == [filled["corpora"]]
    del corpus
    assert [entry.name for entry in clear_cache().removed] == [filled["corpora"]]


def test_a_damaged_data_set_can_be_cleared(filled, place):
    (place / "features" / filled["features"] / MANIFEST).write_text("damaged")
    (found,) = [entry for entry in list_cache().entries if entry.kind == "features"]
    assert not found.is_complete
    assert "damaged" in found.description
    clear_cache()
    assert not (place / "features" / filled["features"]).exists()


def test_wrong_arguments(filled, monkeypatch):
    with pytest.raises(ConfigError, match="Unknown kind 'all'"):
        clear_cache(kinds=["all"])
    with pytest.raises(ConfigError, match="older_than_days is -1"):
        clear_cache(older_than_days=-1)

    def refuse(path):
        raise PermissionError(13, "Permission denied", "shard")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(DataError, match="Cannot remove shard: Permission denied"):
        clear_cache(kinds=["corpora"])
