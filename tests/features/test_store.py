"""Stored features equal the live ones, are computed once, heal themselves, and stay in bounds."""

import json
import os
import pickle
import time

import numpy as np
import pytest
import torch
from features.fakes import SENTENCES, FakeFeatures
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError, FormatError, RelmoWarning
from relmo.features import datasets, fill
from relmo.features.layers import Layers
from relmo.features.live import LiveFeatures
from relmo.features.manifest import MANIFEST, Manifest
from relmo.features.store import FeatureStore, default_directory

MANY = [[f"w{i % 7}", f"v{i}"] + ["x"] * (i % 5) for i in range(60)]


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """Only a power cut would show the difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "store")


@pytest.fixture
def small_parts(monkeypatch):
    """Many chunks and parts even of little data."""
    monkeypatch.setattr(fill, "BATCH_TOKENS", 16)
    monkeypatch.setattr(fill, "PART_BYTES", 1)


def stored_values(live, sentences, dtype=torch.float16, boundaries=False):
    return live.batch(sentences, boundaries=boundaries).values.to(dtype).float()


def is_stored(stored, live, sentences=SENTENCES, dtype=torch.float16):
    """Whether stored vectors are the live ones, rounded."""
    found = [stored.batch(sentences, boundaries=b).values for b in (False, True)]
    expected = [stored_values(live, sentences, dtype, b) for b in (False, True)]
    return all(map(torch.equal, found, expected))


# ---- what can be opened -------------------------------------------------------------------------


def test_a_model_is_opened_as_its_live_features(store, tiny):
    live = LiveFeatures(tiny)
    opened = store.open(tiny, SENTENCES)
    assert opened.identity == live.identity
    assert opened.folder == store.open(live, SENTENCES).folder
    assert is_stored(opened, live)


@pytest.mark.parametrize("given", ["en", [FakeFeatures()]])
def test_what_is_no_features_is_refused(store, given):
    said = f"{type(given).__name__} is no kind of features: it has no name, identity"
    with pytest.raises(ConfigError, match=said):
        store.open(given, SENTENCES)


# ---- the same vectors ---------------------------------------------------------------------------

words = st.text(st.characters(), max_size=3)
sentences = st.lists(st.lists(words, max_size=6), max_size=8)


@settings(max_examples=25, deadline=None)
@given(st.data(), sentences, st.sampled_from([1, 2, 3]), st.sampled_from(["float16", "float32"]))
def test_stored_vectors_are_the_live_ones(tmp_path_factory, data, sentences, n_layers, dtype):
    live = FakeFeatures(n_layers=n_layers)
    store = FeatureStore(tmp_path_factory.mktemp("store"))
    stored = store.open(live, sentences, dtype=dtype)
    for _ in range(2):
        indices = st.lists(st.integers(0, len(sentences) - 1), max_size=10)
        batch = [sentences[i] for i in data.draw(indices)] if sentences else []
        boundaries = data.draw(st.booleans())
        found = stored.batch(batch, boundaries=boundaries)
        expected = live.batch(batch, boundaries=boundaries)
        assert torch.equal(found.values, expected.values.to(getattr(torch, dtype)).float())
        assert torch.equal(found.mask, expected.mask)
        assert found.values.dtype == torch.float32


def test_the_layers_of_a_model_are_stored(store, tiny):
    class Live:
        name, identity = "tiny", "tiny"
        n_layers, dim = tiny.config.n_outputs, tiny.config.output_dim

        @torch.no_grad()
        def batch(self, sentences, *, boundaries=False):
            found = tiny.bilm(tiny.batch(sentences))
            layers = Layers(found.layers, found.mask)
            return layers if boundaries else layers.without_boundaries()

    sentences = SENTENCES[:4] + MANY
    stored = store.open(Live(), sentences)
    found = stored.batch(sentences).values.unbind(1)
    for x, vectors in zip(found, tiny.embed(sentences, layers="all"), strict=True):
        # A float32 may differ in its last bits between batches, and so be rounded otherwise.
        assert np.allclose(x[:, : vectors.shape[1]], vectors, rtol=2**-10, atol=1e-5)
        assert not x[:, vectors.shape[1] :].any()


@pytest.mark.usefixtures("small_parts")
def test_many_parts_hold_the_same_as_one(store):
    live = FakeFeatures()
    stored = store.open(live, MANY)
    assert len(Manifest.read(stored.folder).parts) > 20
    assert is_stored(stored, live, MANY[::-1])


def test_what_stored_features_say_of_themselves(store):
    live = FakeFeatures()
    stored = store.open(live, [*SENTENCES, *SENTENCES])
    assert (stored.name, stored.identity) == (live.name, live.identity)
    assert (stored.n_layers, stored.dim) == (3, 6)
    assert stored.n_sentences == len(SENTENCES)
    assert stored.n_tokens == sum(map(len, SENTENCES))


def test_layer_0_is_kept_once_per_distinct_word(store):
    stored = store.open(FakeFeatures(), MANY)
    manifest = Manifest.read(stored.folder)
    assert manifest.table("layer0").n_rows == len({w for s in MANY for w in s}) + 2
    assert manifest.table("layers").shape == (2, 6)
    on_disk = sum(p.stat().st_size for p in stored.folder.glob("*.table"))
    assert on_disk == manifest.n_bytes


def test_a_sentence_that_is_not_stored(store):
    stored = store.open(FakeFeatures(), SENTENCES)
    with pytest.raises(DataError, match="'never seen' is not among the 9"):
        stored.batch([["the"], ["never", "seen"]])
    with pytest.raises(DataError, match="expected a list of tokens"):
        stored.batch(["the"])
    with pytest.raises(DataError, match="expected strings"):
        stored.batch([[b"the"]])


# ---- computed once ------------------------------------------------------------------------------


def test_the_second_opening_computes_nothing(store, tmp_path):
    live = FakeFeatures()
    store.open(live, SENTENCES)
    assert live.n_computed == len(SENTENCES)
    again = FakeFeatures()
    stored = FeatureStore(tmp_path / "store").open(again, [*SENTENCES[::-1], SENTENCES[0]])
    assert again.n_computed == 0
    assert is_stored(stored, FakeFeatures())


@pytest.mark.parametrize(
    ("other", "dtype"),
    [
        (FakeFeatures(identity="other"), "float16"),
        (FakeFeatures(n_layers=2), "float16"),
        (FakeFeatures(dim=4), "float16"),
        (FakeFeatures(), "float32"),
    ],
    ids=["identity", "layers", "dim", "dtype"],
)
def test_other_features_are_another_data_set(store, other, dtype):
    store.open(FakeFeatures(), SENTENCES)
    stored = store.open(other, SENTENCES, dtype=dtype)
    assert other.n_computed == len(SENTENCES)
    assert is_stored(stored, other, dtype=getattr(torch, dtype))


def test_other_sentences_are_another_data_set(store):
    live = FakeFeatures()
    store.open(live, SENTENCES)
    store.open(live, SENTENCES[1:])
    assert live.n_computed == 2 * len(SENTENCES) - 1


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("n_batches", [0, 1, 3, 7])
def test_a_fill_that_fails_goes_on_where_it_was(store, n_batches):
    live, broken = FakeFeatures(), FakeFeatures()
    calls = iter(range(n_batches))

    def fail():
        if next(calls, None) is None:
            raise RuntimeError("stopped")

    broken.before_batch = fail
    with pytest.raises(RuntimeError, match="stopped"):
        store.open(broken, MANY)
    # What a killed process may leave behind a complete part:
    (folder,) = [p for p in store.directory.iterdir() if p.is_dir()]
    with (folder / "layers.table").open("ab") as file:
        file.write(b"torn")
    (folder / f".{MANIFEST}.partial-1-ab").touch()
    stored = store.open(live, MANY)
    assert is_stored(stored, FakeFeatures(), MANY)
    assert live.n_computed + broken.n_computed == len(MANY)


@pytest.mark.usefixtures("small_parts")
def test_a_full_disk_is_told_and_complete_parts_stay(store):
    resource = pytest.importorskip("resource", reason="no limit of file sizes on this system")
    live = FakeFeatures(dim=64)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"Cannot write .*complete is kept"):
            store.open(live, MANY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    n_before = live.n_computed
    assert 0 < n_before < len(MANY)
    assert is_stored(store.open(live, MANY), FakeFeatures(dim=64), MANY)
    assert live.n_computed < n_before + len(MANY) - 5


def test_too_little_free_space_is_told_before_anything_is_computed(store, monkeypatch):
    live = FakeFeatures()
    monkeypatch.setattr(fill.shutil, "disk_usage", lambda path: type("U", (), {"free": 100}))
    with pytest.raises(DataError, match=r"more in .* where 0\.1 kB are free"):
        store.open(live, SENTENCES)
    assert live.n_computed == 0


# ---- wrong features and arguments ---------------------------------------------------------------


def test_layer_0_that_depends_on_the_context_is_refused(store):
    live = FakeFeatures()
    live._is_first = lambda layer: False
    with pytest.raises(DataError, match="Layer 0 of the features 'fake' differs"):
        store.open(live, SENTENCES)


def test_values_beyond_float16_are_refused(store):
    live = FakeFeatures(scale=1e6)
    with pytest.raises(DataError, match=r"values up to \d.*Store them as float32"):
        store.open(live, SENTENCES)
    stored = store.open(live, SENTENCES, dtype="float32")
    assert is_stored(stored, live, dtype=torch.float32)


def test_a_wrong_mask_is_refused(store):
    live = FakeFeatures()
    original = live.batch
    live.batch = lambda sentences, boundaries=False: original(sentences)
    with pytest.raises(DataError, match="gave vectors of shape"):
        store.open(live, SENTENCES)


def test_wrong_arguments(store, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        store.open(FakeFeatures(), SENTENCES, dtype="int8")
    with pytest.raises(ConfigError, match="max_bytes is 0"):
        FeatureStore(tmp_path, max_bytes=0)
    for text in ("much", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("RELMO_CACHE_GB", text)
        with pytest.raises(ConfigError, match="RELMO_CACHE_GB"):
            FeatureStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Cannot keep features"):
        FeatureStore(tmp_path / "file", max_bytes=1 << 20).open(FakeFeatures(), SENTENCES)


def test_where_and_how_large_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path))
    monkeypatch.delenv("RELMO_CACHE_GB", raising=False)
    assert default_directory() == tmp_path / "features"
    assert FeatureStore().directory == tmp_path / "features"
    assert FeatureStore().max_bytes == 30 * 10**9
    monkeypatch.setenv("RELMO_CACHE_GB", "0.5")
    assert FeatureStore().max_bytes == 5 * 10**8
    assert FeatureStore(max_bytes=7).max_bytes == 7


# ---- damage -------------------------------------------------------------------------------------


def flip(path, place=-1):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


def change_manifest(folder, **values):
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


TABLES = ("hashes", "spans", "words", "layer0", "layers")
DAMAGE = {
    **{f"{t} cut": lambda f, t=t: cut(f / f"{t}.table") for t in TABLES},
    **{f"{t} flipped": lambda f, t=t: flip(f / f"{t}.table") for t in TABLES},
    **{f"{t} gone": lambda f, t=t: (f / f"{t}.table").unlink() for t in TABLES},
    "layers longer": lambda f: lengthen(f / "layers.table"),
    "manifest cut": lambda f: cut(f / MANIFEST) or cut(f / MANIFEST),
    "manifest empty": lambda f: (f / MANIFEST).write_text(""),
    "manifest not text": lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe\0"),
    "manifest of a list": lambda f: (f / MANIFEST).write_text("[]"),
    "manifest of others": lambda f: (f / MANIFEST).write_text('{"name": "web app"}'),
    "another identity": lambda f: change_manifest(f, identity="other"),
    "a later format": lambda f: change_manifest(f, format_version=99),
    "other settings": lambda f: change_manifest(f, settings={"dim": 6}),
    "no tables": lambda f: change_manifest(f, tables=[], parts=[]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_data_set_is_computed_again_with_a_warning(store, damage):
    live = FakeFeatures()
    folder = store.open(live, SENTENCES).folder
    damage(folder)
    with pytest.warns(RelmoWarning, match="damaged, and are computed again"):
        stored = store.open(live, SENTENCES)
    assert live.n_computed == 2 * len(SENTENCES)
    assert is_stored(stored, live)
    n_computed = live.n_computed
    store.open(live, SENTENCES)  # without a warning, which would be an error
    assert live.n_computed == n_computed


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("damage", [cut, flip])
def test_damage_is_found_when_a_fill_goes_on(store, table, damage):
    live, broken = FakeFeatures(), FakeFeatures()
    calls = iter(range(5))

    def fail():
        if next(calls, None) is None:
            raise RuntimeError

    broken.before_batch = fail
    with pytest.raises(RuntimeError):
        store.open(broken, MANY)
    (folder,) = [p for p in store.directory.iterdir() if p.is_dir()]
    n_bytes = Manifest.read(folder).file_sizes()[f"{table}.table"]
    os.truncate(folder / f"{table}.table", n_bytes)
    damage(folder / f"{table}.table")
    with pytest.warns(RelmoWarning, match="computed again"):
        stored = store.open(live, MANY)
    assert is_stored(stored, FakeFeatures(), MANY)


def test_checksums_of_vectors_are_compared_once_and_on_demand(store, monkeypatch):
    live = FakeFeatures()
    store.open(live, SENTENCES)
    compared = []
    original = Manifest.check_sums
    monkeypatch.setattr(
        Manifest,
        "check_sums",
        lambda self, folder, tables=None: compared.append(tables) or original(self, folder, tables),
    )
    store.open(live, SENTENCES)
    store.open(live, SENTENCES)
    folder = store.open(live, SENTENCES, verify=True).folder
    assert compared == [None, fill.INDEX, None]
    flip(folder / "layers.table")
    store.open(live, SENTENCES)
    with pytest.warns(RelmoWarning, match=r"layers\.table is damaged: rows 0 to"):
        store.open(live, SENTENCES, verify=True)


def test_foreign_files_are_left_alone(store):
    live = FakeFeatures()
    folder = store.open(live, SENTENCES).folder
    foreign = [
        folder / "notes.txt",
        store.directory / "notes.txt",
        store.directory / "somebody" / MANIFEST,
    ]
    foreign[2].parent.mkdir()
    for path in foreign:
        path.write_text("mine")
    (folder / MANIFEST).write_text("damaged")
    with pytest.warns(RelmoWarning):
        store.open(live, SENTENCES).close()
    directory = datasets.DatasetDirectory(store.directory, store.max_bytes)
    assert [d.name for d in directory.datasets()] == [folder.name]
    assert directory.remove(folder.name)
    assert [path.read_text() for path in foreign] == ["mine"] * 3
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_tables_that_do_not_fit_together_are_not_read(store):
    live = FakeFeatures()
    folder = store.open(live, SENTENCES).folder
    manifest = Manifest.read(folder)
    spans = np.fromfile(folder / "spans.table", "<i8")
    spans[-1] = 10**6
    spans.tofile(folder / "spans.table")
    parts = [
        part | {"sha256": fill._sha256(spans, "int64")} if part["table"] == "spans" else part
        for part in manifest.as_dict()["parts"]
    ]
    change_manifest(folder, parts=parts)
    Manifest.read(folder).check_sums(folder)  # its checksums are right
    with pytest.warns(RelmoWarning, match="do not fit together"):
        assert is_stored(store.open(live, SENTENCES), live)


# ---- bounds -------------------------------------------------------------------------------------


def n_bytes(sentences, directory):
    stored = FeatureStore(directory).open(FakeFeatures(), sentences)
    stored.close()
    return sum(path.stat().st_size for path in stored.folder.iterdir())


def corpora(n):
    return [[[f"{name}{i}"] for i in range(50)] for name in "abcdefg"[:n]]


def test_the_least_recently_used_data_set_goes_first(tmp_path):
    sets = corpora(4)
    bound = 3 * n_bytes(sets[0], tmp_path / "measured") + 100
    store, live = FeatureStore(tmp_path / "store", max_bytes=bound), FakeFeatures()

    def is_there(number):
        computed = live.n_computed
        store.open(live, sets[number]).close()
        return live.n_computed == computed

    folders = []
    for number in range(3):
        stored = store.open(live, sets[number])
        stored.close()
        folders.append(stored.folder)
        os.utime(stored.folder / MANIFEST, (time.time() - 1000 + number,) * 2)
    assert is_there(0)  # used last now
    store.open(live, sets[3]).close()
    assert [folder.exists() for folder in folders] == [True, False, True]
    assert is_there(0)
    assert is_there(2)
    assert not is_there(1)


def test_a_data_set_in_use_stays(tmp_path):
    sets = corpora(3)
    bound = 2 * n_bytes(sets[0], tmp_path / "measured") + 100
    store, live = FeatureStore(tmp_path / "store", max_bytes=bound), FakeFeatures()
    first, second = (store.open(live, sentences) for sentences in sets[:2])
    os.utime(first.folder / MANIFEST, (1, 1))
    with pytest.raises(DataError, match=r"in use by other processes"):
        store.open(live, sets[2])
    assert is_stored(first, live, sets[0])
    second.close()
    store.open(live, sets[2])
    assert first.folder.exists()
    assert not second.folder.exists()
    with pytest.raises(DataError, match="are closed"):
        second.batch(sets[1])
    folder = first.folder
    del first
    assert not list(folder.glob("reader-*"))


def test_a_data_set_larger_than_the_bound_is_told_before_computing(tmp_path):
    live = FakeFeatures()
    store = FeatureStore(tmp_path / "store", max_bytes=1000)
    with pytest.raises(DataError, match=r"take \d+\.\d kB, but the store in .* may take 1\.0 kB"):
        store.open(live, MANY)
    assert live.n_computed == 0
    assert not list(store.directory.rglob("*.table"))


def test_a_reader_that_was_killed_does_not_hold_its_data_set(store):
    stored = store.open(FakeFeatures(), SENTENCES)
    stored.close()
    (stored.folder / "reader-1-dead.lock").touch()
    directory = datasets.DatasetDirectory(store.directory, 1)
    assert directory.remove(stored.folder.name)
    assert not stored.folder.exists()


def test_a_store_that_may_only_be_read(store, monkeypatch):
    live = FakeFeatures()
    folder = store.open(live, SENTENCES).folder
    before = {path.name for path in folder.iterdir()}
    monkeypatch.setattr(datasets.os, "access", lambda path, mode: False)
    monkeypatch.setattr(datasets, "_try_lock", None)  # no lock is tried
    stored = store.open(live, SENTENCES)
    assert is_stored(stored, live)
    stored.close()
    assert {path.name for path in folder.iterdir()} <= before | {"verified"}


def test_stored_features_go_to_worker_processes(store):
    live = FakeFeatures()
    stored = store.open(live, SENTENCES)
    sent = pickle.dumps(stored)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    assert is_stored(copy, live)
    stored.close()
    assert datasets.DatasetDirectory(store.directory, 1).datasets()[0].in_use
    copy.close()
    assert not datasets.DatasetDirectory(store.directory, 1).datasets()[0].in_use


def test_the_list_of_data_sets(store):
    live = FakeFeatures()
    stored = store.open(live, SENTENCES)
    directory = datasets.DatasetDirectory(store.directory, store.max_bytes)
    (found,) = directory.datasets()
    assert found.in_use
    assert found.is_complete
    assert (found.features, found.identity) == ("fake", "fake")
    assert found.settings["n_tokens"] == stored.n_tokens
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
    stored.close()
    (stored.folder / MANIFEST).write_text("damaged")
    (found,) = directory.datasets()
    assert not found.in_use
    assert not found.is_complete
    assert datasets.DatasetDirectory(store.directory / "none", 1).datasets() == []


def test_a_folder_that_is_a_file(store, tmp_path):
    folder = FeatureStore(tmp_path / "other").open(FakeFeatures(), SENTENCES).folder
    store.directory.mkdir()
    (store.directory / folder.name).touch()
    with pytest.raises(DataError, match="Cannot keep features in"):
        store.open(FakeFeatures(), SENTENCES)


def test_no_format_error_leaves_the_store(store):
    """A cache heals itself: what cannot be read is computed again, whatever it is."""
    live = FakeFeatures()
    folder = store.open(live, SENTENCES).folder
    (folder / "layers.table").unlink()
    (folder / "layers.table").mkdir()
    with pytest.raises(DataError, match="Cannot write features"), pytest.warns(RelmoWarning):
        store.open(live, SENTENCES)
    with pytest.raises(FormatError):
        Manifest.read(folder / "nowhere")
