"""ELMoForManyLangs' directories are read as the original read them."""

from __future__ import annotations

import json

import legacy
import numpy as np
import pytest
import reference
import torch
from tolerance import network_rounding

import relmo
from relmo.errors import ConfigError, FormatError
from relmo.formats import WRITERS, many_langs, read_model
from relmo.formats.model_files import open_model_files

SENTENCES = [["ab", "cd", "日", "zz"], ["\u3000", "\u2028", "fab", "a" * 70, "<bos>"], ["<oov>"]]
PICKLES = ("token_embedder.pkl", "encoder.pkl")


def write_random(directory, seed=0, **sizes):
    return legacy.write_many_langs(directory, np.random.default_rng(seed), **sizes)


def assert_equals_oracle(model, built, sentences=SENTENCES):
    for sentence, got in zip(sentences, model.embed(sentences, layers="all"), strict=True):
        expected = reference.many_langs_layers(*built, sentence)
        # Projections of random weights enlarge what comes in up to fourfold.
        scale = 4 * max(1, np.abs(expected).max())
        atol = network_rounding(model.config, len(sentence), scale)
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def assert_refused(directory, *parts, error=FormatError):
    with pytest.raises(error) as caught:
        read_model(directory)
    for part in (str(directory), *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize(("word_dim", "char_dim"), [(5, 3), (0, 3), (5, 0)])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_vectors_are_those_of_the_oracle(tmp_path, word_dim, char_dim, n_layers):
    built = write_random(tmp_path, word_dim=word_dim, char_dim=char_dim, n_layers=n_layers)
    model = relmo.load(tmp_path)
    assert (model.config.encoder.n_words > 0, model.config.encoder.n_characters > 0) == (
        word_dim > 0,
        char_dim > 0,
    )
    assert_equals_oracle(model, built)


def test_tanh_and_no_highway(tmp_path):
    built = write_random(tmp_path, activation="tanh", n_highway=0)
    assert_equals_oracle(relmo.load(tmp_path), built)


@pytest.mark.parametrize("sizes", [(5, 3), (0, 3), (5, 0)])
def test_relmos_own_directory_gives_the_same_vectors(tmp_path, sizes):
    word_dim, char_dim = sizes
    built = write_random(tmp_path / "theirs", word_dim=word_dim, char_dim=char_dim)
    relmo.load(tmp_path / "theirs").save(tmp_path / "ours")
    models = [relmo.load(tmp_path / name) for name in ("theirs", "ours")]
    assert_equals_oracle(models[1], built)
    for a, b in zip(*(model.embed(SENTENCES, layers="all") for model in models), strict=True):
        # Not to the last bit: how a mapped file is aligned may change how a product is rounded.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_long_word_is_cut_before_it_is_looked_up(tmp_path):
    built = write_random(tmp_path, max_characters_per_token=7)
    model = relmo.load(tmp_path)
    cut, whole, other = model.embed([["<pad>zz"], ["<pad>"], ["<pod>zz"]], layers=0)
    np.testing.assert_array_equal(cut, whole)
    assert not np.allclose(whole, other)  # no known word, and its letters are known as little
    assert_equals_oracle(model, built, [["<pad>zz", "ab"], ["abcdefabcdef"]])


def test_pickles_of_older_pytorch_are_read(tmp_path):
    built = write_random(tmp_path)
    for name in PICKLES:
        state = torch.load(tmp_path / name, weights_only=True)
        torch.save(state, tmp_path / name, _use_new_zipfile_serialization=False)
        assert not (tmp_path / name).read_bytes().startswith(b"PK")
    assert_equals_oracle(relmo.load(tmp_path), built)


def test_tensors_that_share_memory_can_be_written_again(tmp_path):
    built = write_random(tmp_path / "theirs")
    state = torch.load(tmp_path / "theirs" / "encoder.pkl", weights_only=True)
    for name in list(state):
        state[name.replace("backward", "forward")] = state[name]
        built.encoder[name.replace("backward", "forward")] = built.encoder[name]
    torch.save(state, tmp_path / "theirs" / "encoder.pkl")
    relmo.load(tmp_path / "theirs").save(tmp_path / "ours")
    assert_equals_oracle(relmo.load(tmp_path / "ours"), built)


def test_it_cannot_be_written_as_bilm_tf(tmp_path):
    for name, word_dim in (("both", 5), ("characters", 0)):
        write_random(tmp_path / name, word_dim=word_dim)
        contents = read_model(tmp_path / name)
        with pytest.raises(FormatError, match=r"holds byte models only\. Use relmo's format"):
            WRITERS["bilm-tf"](contents, tmp_path / "written")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["both", "characters"]


# ---- the architecture ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", many_langs.SHIPPED_NAMES)
@pytest.mark.parametrize("folder", ["/home/somebody/configs/", "C:\\models\\", ""])
def test_what_the_package_shipped_is_known(tmp_path, name, folder):
    write_random(tmp_path)
    (tmp_path / legacy.ARCHITECTURE).unlink()
    (tmp_path / "config.json").write_text(json.dumps({"config_path": folder + name}))
    assert_refused(tmp_path, "[14, 7]", "expected 4096 rows")  # the weights are far too small
    stack, token = many_langs._find_architecture(open_model_files(tmp_path))
    lexicon = many_langs.Lexicon(("a",) * 6, ("b",) * 5)
    config = many_langs._parse_architecture(stack, token, lexicon, "here")
    assert (config.lstm.cell_dim, config.lstm.projection_dim, config.lstm.n_layers) == (
        4096,
        512,
        2,
    )
    assert (config.lstm.cell_clip, config.lstm.projection_clip, config.lstm.residual) == (
        3,
        3,
        True,
    )
    assert (config.encoder.word_dim, config.encoder.character_dim) == (100, 50)
    assert (config.encoder.n_filters, config.encoder.n_highway) == (2048, 2)
    assert (config.encoder.max_characters, config.encoder.activation) == (50, "relu")


def test_a_model_without_its_architecture_uses_the_shipped_one(tmp_path, monkeypatch):
    built = write_random(tmp_path)
    (tmp_path / legacy.ARCHITECTURE).unlink()
    monkeypatch.setattr(many_langs, "SHIPPED", built.architecture)
    assert_equals_oracle(relmo.load(tmp_path), built)


def test_an_architecture_under_another_name_is_found_when_it_is_the_only_one(tmp_path):
    built = write_random(tmp_path)
    (tmp_path / legacy.ARCHITECTURE).rename(tmp_path / "renamed.json")
    assert_equals_oracle(relmo.load(tmp_path), built)
    (tmp_path / "config.json").unlink()
    assert_equals_oracle(relmo.load(tmp_path), built)


def test_which_of_several_architectures_config_json_tells(tmp_path):
    built = write_random(tmp_path)
    other = {**built.architecture, "encoder": {**built.architecture["encoder"], "dim": 99}}
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert_equals_oracle(relmo.load(tmp_path), built)
    (tmp_path / "config.json").write_text('{"config_path": "third.json"}')
    assert_refused(tmp_path, "one architecture, found 2", "third.json")


def test_an_architecture_that_nobody_knows(tmp_path):
    write_random(tmp_path)
    (tmp_path / legacy.ARCHITECTURE).unlink()
    (tmp_path / "config.json").write_text('{"config_path": "/x/mine.json"}')
    assert_refused(tmp_path, "one architecture, found 0", "mine.json")


@pytest.mark.parametrize(
    ("part", "key", "value", "error"),
    [
        ("encoder", "name", "lstm", FormatError),
        ("token_embedder", "name", "lstm", FormatError),
        ("encoder", "dim", -6, ConfigError),
        ("encoder", "dim", None, ConfigError),
        ("encoder", "n_layers", 10**9, ConfigError),
        ("encoder", "cell_clip", "three", ConfigError),
        ("token_embedder", "filters", [[1]], ConfigError),
        ("token_embedder", "filters", None, ConfigError),
        ("token_embedder", "activation", "gelu", ConfigError),
        ("token_embedder", "word_dim", [5], ConfigError),
        ("token_embedder", "n_highway", 3, FormatError),
        ("token_embedder", "n_highway", 1, FormatError),
        ("token_embedder", "filters", [[1, 3], [2, 5]], FormatError),
    ],
)
def test_an_architecture_that_makes_no_sense(tmp_path, part, key, value, error):
    built = write_random(tmp_path)
    built.architecture[part][key] = value
    (tmp_path / legacy.ARCHITECTURE).write_text(json.dumps(built.architecture))
    assert_refused(tmp_path, error=error)


@pytest.mark.parametrize("part", ["encoder", "token_embedder"])
def test_an_architecture_of_another_shape(tmp_path, part):
    built = write_random(tmp_path)
    (tmp_path / legacy.ARCHITECTURE).write_text(json.dumps({**built.architecture, part: [1]}))
    assert_refused(tmp_path, "must be JSON objects")


# ---- lexicons and tensors ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["char.dic", "word.dic"])
@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (lambda data: b"", ["not a token, a tab and a number"]),
        (lambda data: data + b"x\n", ["'x'", "not a token"]),
        (lambda data: data + b"x\tone\n", ["not a token"]),
        (lambda data: data + b"x\t-1\n", ["each once"]),
        (lambda data: data + b"x\t999\n", ["each once"]),
        (lambda data: data + b"x\t0\n", ["each once"]),
        (lambda data: data + b"x\t" + b"9" * 9999 + b"\n", ["not a token"]),
        (lambda data: data.replace(b"\n", b"\n\n", 1), ["not a token"]),
        (lambda data: data.replace(b"\t", b" "), ["not a token"]),
        (lambda data: data.replace(b"<oov>", b"<unk>"), ["marks", "<oov>"]),
        (lambda data: data.decode().encode("utf-16"), ["not UTF-8"]),
        (lambda data: data.replace("日".encode(), b"\xff"), ["not UTF-8"]),
        (lambda data: data.removesuffix(b"\n").rpartition(b"\n")[0], []),
    ],
)
def test_damaged_lexicons_are_named(tmp_path, name, damage, parts):
    write_random(tmp_path)
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))
    # A list that is merely too short does not look damaged; the weights tell.
    assert_refused(tmp_path, *([name, *parts] if parts else ["shape"]))


@pytest.mark.parametrize("name", ["char.dic", "word.dic"])
def test_a_lexicon_is_needed_when_there_are_weights_for_it(tmp_path, name):
    write_random(tmp_path)
    (tmp_path / name).unlink()
    assert_refused(tmp_path, f"{name} is missing")


def test_windows_line_ends_in_a_lexicon(tmp_path):
    built = write_random(tmp_path)
    for name in ("char.dic", "word.dic"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert_equals_oracle(relmo.load(tmp_path), built)


@pytest.mark.parametrize("name", PICKLES)
def test_every_tensor_is_needed_in_its_shape(tmp_path, name):
    write_random(tmp_path)
    state = torch.load(tmp_path / name, weights_only=True)
    for key in state:
        for changed in (
            {k: v for k, v in state.items() if k != key},
            {**state, key: state[key][:-1]},
            {**state, key: torch.tensor(1.0)},
        ):
            torch.save(changed, tmp_path / name)
            assert_refused(tmp_path)
    torch.save(state, tmp_path / name)
    assert read_model(tmp_path).origin.startswith("ELMoForManyLangs")
