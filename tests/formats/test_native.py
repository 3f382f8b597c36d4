"""relmo's own model directory: what is written is what is read, and damage is told as such."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import legacy
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

import relmo
from relmo.errors import ConfigError, DataError, FormatError
from relmo.formats import native, read_model
from relmo.text.vocabulary import Vocabulary

ODD_WORDS = ("<S>", "</S>", "<UNK>", "the ", " the", "\u2028", "a\x85", "\x0b", "日", "e\u0301", "")
SENTENCES = [["The", "cat", "sat"], ["日本", "ab", "abc"]]


@pytest.fixture
def contents(tmp_path):
    """A model with everything that a byte model can have."""
    rng = np.random.default_rng(0)
    sizes = {"dim": 7, "projection_dim": 4, "filters": [[1, 3], [2, 2]], "n_highway": 1}
    options = legacy.random_options(rng, n_layers=2, **sizes)
    n = len(ODD_WORDS)
    legacy.write_bilm_tf(
        tmp_path / "legacy",
        options,
        legacy.random_bilm_tf(rng, options),
        softmax=(legacy.normal(rng, n, 4, scale=1), legacy.normal(rng, n, scale=1)),
    )
    return replace(read_model(tmp_path / "legacy"), vocabulary=Vocabulary(ODD_WORDS))


@pytest.fixture
def directory(tmp_path, contents):
    native.write(contents, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def with_lexicon(tmp_path):
    legacy.write_many_langs(tmp_path / "many-langs", np.random.default_rng(0))
    native.write(read_model(tmp_path / "many-langs"), tmp_path / "model")
    return tmp_path / "model"


def edit_config(directory, **changes):
    """Change config.json: `a__b=1` sets ["a"]["b"]."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        *parts, last = name.split("__")
        place = config
        for part in parts:
            place = place[part]
        place[last] = value
    path.write_text(json.dumps(config))


def edit_tensors(directory, **changes):
    tensors = load_file(directory / "model.safetensors")
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    tensors = {k: v.clone() for k, v in {**tensors, **changes}.items() if v is not None}
    save_file(tensors, directory / "model.safetensors")


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_everything_comes_back_bit_for_bit(contents, directory):
    got = read_model(directory)
    assert_same(got.tensors, contents.tensors)
    assert_same(got.remainders, contents.remainders)
    assert any(t.any() for t in got.remainders.values())
    assert_same(vars(got.softmax), vars(contents.softmax))
    assert got.vocabulary.words == ODD_WORDS
    assert (got.config, got.origin, got.lexicon) == (contents.config, contents.origin, None)
    files = ["README.md", "config.json", "model.safetensors", "vocabulary.txt"]
    assert sorted(p.name for p in directory.iterdir()) == files
    assert "bilm-tf" in (directory / "README.md").read_text(encoding="utf-8")


def test_a_lexicon_comes_back(tmp_path, with_lexicon):
    expected, got = read_model(tmp_path / "many-langs"), read_model(with_lexicon)
    assert got.lexicon == expected.lexicon
    assert {"\u2028", "\u3000", "日"} <= set(got.lexicon.characters)
    assert_same(got.tensors, expected.tensors)
    assert (got.softmax, got.vocabulary, got.remainders) == (None, None, {})


def test_what_is_loaded_can_be_saved_and_is_the_same(tmp_path, contents, directory):
    relmo.load(directory).save(tmp_path / "again")
    for name in ("model.safetensors", "vocabulary.txt", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (directory / name).read_bytes()


def test_float16_hardly_moves_the_vectors(tmp_path, contents, directory):
    native.write(contents, tmp_path / "half", dtype="float16")
    read = read_model(tmp_path / "half")
    assert {t.dtype for t in read.tensors.values()} == {torch.float16}
    assert not read.remainders  # they would say nothing of a rounded tensor
    full, half = (relmo.load(path) for path in (directory, tmp_path / "half"))
    assert {p.dtype for p in half.bilm.parameters()} == {torch.float32}
    for a, b in zip(full.embed(SENTENCES), half.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)
        assert not np.array_equal(a, b)
    relmo.load(tmp_path / "half").save(tmp_path / "old", to="bilm-tf")
    assert relmo.load(tmp_path / "old").embed(SENTENCES)[0].shape == (3, 8)


@pytest.mark.parametrize("folder", ["", "a/b/"])
def test_a_zipped_directory_is_read_in_place(tmp_path, directory, folder):
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in directory.iterdir():
            archive.write(path, folder + path.name)
    expected = relmo.load(directory).embed(SENTENCES)
    shutil.rmtree(directory)
    for a, b in zip(relmo.load(tmp_path / "model.zip").embed(SENTENCES), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_mapped_not_copied(directory):
    bilm = relmo.load(directory).bilm
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(directory / "model.safetensors"))
    ]
    assert ranges
    for name, parameter in bilm.named_parameters():
        assert any(start <= parameter.data_ptr() < end for start, end in ranges), name


@pytest.mark.slow
def test_loading_imports_no_compiler(directory):
    """PyTorch's takes a second to import, and makes itself a directory for temporary files."""
    code = "import sys, relmo; relmo.load(sys.argv[1]); sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, directory], check=False).returncode == 0


# ---- what is wrong is told -----------------------------------------------------------------------


def assert_refused(directory, *parts, error=FormatError):
    with pytest.raises(error) as caught:
        read_model(directory)
    for part in (str(directory), *parts):
        assert part in str(caught.value)


def test_a_newer_format_says_to_update(directory):
    edit_config(directory, format_version=2)
    assert_refused(directory, "format_version 2", "Update relmo", relmo.__version__)


@pytest.mark.parametrize("version", [0, -1, None, "1", [1], 1.5])
def test_a_format_version_that_never_was_is_damage(directory, version):
    edit_config(directory, format_version=version)
    assert_refused(directory, repr(version), "damaged")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model__surprise", 1),
        ("model__encoder__surprise", 1),
        ("model__lstm__cell_dim", -1),
        ("model__lstm__cell_dim", 10**12),
        ("model__lstm__cell_dim", "many"),
        ("model__lstm__cell_clip", float("nan")),
        ("model__encoder__filters", [[1, 2, 3]]),
        ("model__encoder__n_characters", 263),
    ],
)
def test_settings_that_make_no_sense_are_named(directory, name, value):
    edit_config(directory, **{name: value})
    assert_refused(directory, "config.json", name.split("__")[-1], error=ConfigError)


@pytest.mark.parametrize("model", [None, [], "tiny", 3, {}])
def test_a_model_that_is_no_table(directory, model):
    edit_config(directory, model=model)
    assert_refused(directory, "config.json", error=ConfigError)


@pytest.mark.parametrize(
    ("name", "tensor", "parts"),
    [
        ("forward_stack__0__bias", None, ["[28]", "missing"]),
        ("forward_stack__0__bias", torch.zeros(27), ["[27]", "[28]"]),
        ("forward_stack__0__bias", torch.zeros(28, 1), ["[28, 1]", "[28]"]),
        ("forward_stack__0__bias", torch.zeros(28, dtype=torch.int64), ["int64"]),
        ("forward_stack__0__bias", torch.zeros(28, dtype=torch.complex64), ["complex64"]),
        ("forward_stack__9__bias", torch.zeros(28), ["does not know"]),
        ("remainder__forward_stack__0__bias", torch.zeros(27), ["remainder", "[27]", "[28]"]),
        ("remainder__nothing", torch.zeros(27), ["remainder", "does not know"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(directory, name, tensor, parts):
    edit_tensors(directory, **{name: tensor})
    name = name.replace("__", ".").removeprefix("remainder.")
    assert_refused(directory, name, *parts)


@pytest.mark.parametrize(
    "changes",
    [
        {"softmax__bias": None},
        {"softmax__more": torch.zeros(1)},
        {"softmax__bias": torch.zeros(3)},
        {"softmax__bias": torch.zeros(())},
        {"softmax__weight": torch.zeros(())},
        {"softmax__weight": torch.zeros(len(ODD_WORDS), 5)},
        {"softmax__weight": torch.zeros(7, 4), "softmax__bias": torch.zeros(7)},
    ],
)
def test_a_softmax_that_does_not_fit(directory, changes):
    edit_tensors(directory, **changes)
    assert_refused(directory, "softmax")


def test_a_vocabulary_that_does_not_fit_the_softmax(directory):
    (directory / "vocabulary.txt").write_text("<S>\n</S>\n<UNK>\n")
    assert_refused(directory, "softmax", "3 words")
    (directory / "vocabulary.txt").write_text("the\n")
    assert_refused(directory, "vocabulary.txt", "<S>")
    (directory / "vocabulary.txt").write_bytes(b"")
    assert_refused(directory, "vocabulary.txt", "<S>")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"characters": []}',
        b'{"characters": [], "words": []}',
        b'{"characters": [1], "words": []}',
        b'{"characters": "abc", "words": []}',
        b"[" * 99_999,
    ],
    ids=range(9),
)
def test_a_damaged_lexicon(with_lexicon, data):
    (with_lexicon / "lexicon.json").write_bytes(data)
    assert_refused(with_lexicon, "lexicon")


def test_a_lexicon_without_its_marks_or_of_another_size(with_lexicon):
    path = with_lexicon / "lexicon.json"
    lexicon = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**lexicon, "words": [*lexicon["words"], "more"]}))
    assert_refused(with_lexicon, "8 words", "7")
    path.write_text(json.dumps({**lexicon, "words": [f"w{i}" for i in range(7)]}))
    assert_refused(with_lexicon, "words", "<oov>")
    characters = [c if c != "<pad>" else "p" for c in lexicon["characters"]]
    path.write_text(json.dumps({**lexicon, "characters": characters}))
    assert_refused(with_lexicon, "characters", "<pad>")
    path.unlink()
    assert_refused(with_lexicon, "lexicon.json is missing")


def test_words_need_a_lexicon(directory):
    edit_config(directory, model__encoder__n_words=3, model__encoder__word_dim=2)
    assert_refused(directory, "words are known by a lexicon", error=ConfigError)


def test_two_configurations_are_one_too_many(directory):
    shutil.copy(directory / "config.json", directory / "config (copy).json")
    assert_refused(directory, "config.json", "config (copy).json")


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 500, -1])
def test_cut_weights(directory, cut):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert_refused(directory, "model.safetensors", "damaged")


def test_weights_that_are_missing_or_something_else(directory):
    path = directory / "model.safetensors"
    path.write_bytes(bytes(range(256)) * 9)
    assert_refused(directory, "model.safetensors", "damaged")
    path.unlink()
    assert_refused(directory, "model.safetensors is missing")
    path.mkdir()
    assert_refused(directory, "model.safetensors is missing")


# ---- writing is all or nothing -------------------------------------------------------------------


@pytest.mark.parametrize("to", ["relmo", "bilm-tf"])
def test_what_is_there_is_never_overwritten(tmp_path, directory, to):
    model = relmo.load(directory)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="full exists and is not empty"):
        model.save(tmp_path / "full", to=to)
    with pytest.raises(DataError, match=r"mine\.txt exists and is not a directory"):
        model.save(tmp_path / "full" / "mine.txt", to=to)
    with pytest.raises(DataError, match="no directory"):
        model.save(tmp_path / "none" / "model", to=to)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "legacy", "model"]
    (tmp_path / "empty").mkdir()
    model.save(tmp_path / "empty", to=to)
    assert relmo.load(tmp_path / "empty").config == model.config


def test_a_full_disk_leaves_nothing_behind(tmp_path, contents, monkeypatch):
    def fail(tensors, path):
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(DataError, match=r"model: No space left on device"):
        native.write(contents, tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["legacy"]
