"""Which format it is, is seen from the content, whatever the files are called."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path

import legacy
import numpy as np
import pytest

import relmo
from relmo.errors import FormatError
from relmo.formats import detect, native, read_model
from relmo.formats.model_files import open_model_files
from relmo.formats.published import PUBLISHED

SENTENCE = [["ab", "日", "The"]]
FORMATS = ("relmo", "bilm-tf", "many-langs")

pytestmark = pytest.mark.timeout(60)  # whoever opens a pipe waits for ever


@pytest.fixture(params=FORMATS)
def model(request, tmp_path):
    """A model directory of each format, by the format's name."""
    directory = tmp_path / "folder"
    rng = np.random.default_rng(0)
    if request.param == "many-langs":
        legacy.write_many_langs(directory, rng)
        return request.param, directory
    options = legacy.random_options(rng)
    legacy.write_bilm_tf(directory, options, legacy.random_bilm_tf(rng, options))
    if request.param == "relmo":
        contents = read_model(directory)
        for path in directory.iterdir():
            path.unlink()
        native.write(contents, directory)
    return request.param, directory


@pytest.fixture
def bilm_tf(tmp_path):
    rng = np.random.default_rng(0)
    options = legacy.random_options(rng)
    tensors = legacy.random_bilm_tf(rng, options)
    legacy.write_bilm_tf(tmp_path / "folder", options, tensors)
    return options, tensors


def pack(directory, path, folder=""):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if folder:
            archive.writestr(folder, "")
        for file in directory.iterdir():
            archive.write(file, folder + file.name)
    return path


def assert_same_vectors(*sources):
    first, *others = (relmo.load(source).embed(SENTENCE, layers="all")[0] for source in sources)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_directories_are_told_apart(model):
    name, directory = model
    assert detect(open_model_files(directory)) == name
    renamed = directory.rename(directory.with_name("weights.hdf5 model.zip"))
    assert detect(open_model_files(renamed)) == name
    assert relmo.load(str(renamed)).embed(SENTENCE)[0].shape[0] == 3


def test_foreign_files_beside_are_left_alone(model):
    name, directory = model
    expected = relmo.load(directory).embed(SENTENCE)[0]
    rng = np.random.default_rng(0)
    (directory / "README").write_text("A model.\n{braces}\n")
    (directory / "meta.json").write_text('{"language": {"id": 1}, "version": 3}')
    (directory / "list.json").write_text("[1, 2]")
    (directory / "broken.json").write_text('{"lstm": {"char_cnn"')
    (directory / "empty").write_bytes(b"")
    (directory / "vectors.npy").write_bytes(b"\x93NUMPY" + bytes(99))
    (directory / "LICENSE.gz").write_bytes(b"\x1f\x8b no gzip at all")
    legacy.write_hdf5(directory / "embedding.hdf5", {"0": legacy.normal(rng, 3, 4, scale=1)})
    (directory / "more").mkdir()
    (directory / "more" / "config.json").write_text('{"format_version": 99, "model": {}}')
    (directory / "dangling").symlink_to("nowhere")
    (directory / "loop").symlink_to("loop")
    os.mkfifo(directory / "pipe")
    assert detect(open_model_files(directory)) == name
    np.testing.assert_array_equal(relmo.load(directory).embed(SENTENCE)[0], expected)


@pytest.mark.parametrize(
    ("file_name", "folder"),
    [("model.zip", ""), ("model", "en/"), ("model.hdf5", "./"), ("1.zip", "models/en/172/")],
)
def test_archives_of_every_format(tmp_path, model, file_name, folder):
    name, directory = model
    path = pack(directory, tmp_path / file_name, folder)
    assert detect(open_model_files(path)) == name
    before = sorted(tmp_path.rglob("*"))
    assert_same_vectors(directory, path)
    assert sorted(tmp_path.rglob("*")) == before


def test_bilm_tf_files_under_other_names(tmp_path, bilm_tf):
    directory = tmp_path / "folder"
    expected = relmo.load(directory).embed(SENTENCE)[0]
    (directory / "options.json").rename(directory / "weights.hdf5.txt")
    (directory / "weights.hdf5").rename(directory / "config.json")
    np.testing.assert_array_equal(relmo.load(directory).embed(SENTENCE)[0], expected)


def test_options_may_begin_with_space_or_a_byte_order_mark(tmp_path, bilm_tf):
    options = tmp_path / "folder" / "options.json"
    data = options.read_bytes()
    expected = read_model(tmp_path / "folder").config
    for prefix in (b"\n\t ", b"\xef\xbb\xbf"):
        options.write_bytes(prefix + data)
        assert read_model(tmp_path / "folder").config == expected


@pytest.mark.parametrize("gz", [False, True])
def test_simple_elmo_archives(tmp_path, bilm_tf, gz):
    words = ["<S>", "</S>", "<UNK>", "日"]
    legacy.write_simple_elmo_zip(tmp_path / "172.zip", *bilm_tf, words, gz=gz)
    assert_same_vectors(tmp_path / "172.zip", tmp_path / "folder")
    assert read_model(tmp_path / "172.zip").vocabulary.words == tuple(words)


def test_nothing_known_lists_what_was_found(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(
        FormatError, match=r"it holds: a\.txt, b\.json\. Expected relmo's"
    ) as caught:
        relmo.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(FormatError, match=r"it holds: a\.txt, b\.json\. Expected relmo's"):
        relmo.load(pack(tmp_path, tmp_path.with_name("nothing.zip")))


def test_an_empty_directory_and_an_empty_archive(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", pack(tmp_path / "folder", tmp_path / "empty.zip")):
        with pytest.raises(FormatError, match="it holds: nothing") as caught:
            relmo.load(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"hello", b'{"lstm": {}, "char_cnn": {}}', b"PK\x03\x04"])
def test_a_file_that_is_no_model(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(
        FormatError, match="file is neither a model directory, a zip archive nor HDF5"
    ):
        relmo.load(path)


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="pipe is neither"):
        relmo.load(tmp_path / "pipe")


def test_what_may_not_be_read_is_told(tmp_path, monkeypatch, bilm_tf):
    def deny(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    weights = tmp_path / "folder" / "weights.hdf5"
    monkeypatch.setattr(Path, "open", deny)
    for source in (weights, tmp_path / "folder"):
        with pytest.raises(FormatError, match=r"folder/\w+\.\w+ cannot be read: Permission denied"):
            read_model(source)
    monkeypatch.setattr(Path, "iterdir", deny)
    with pytest.raises(FormatError, match="folder cannot be read: Permission denied"):
        read_model(tmp_path / "folder")


@pytest.mark.parametrize("name", ["no-such-model", "no/such/model", "", "x" * 5000, "nul\0byte"])
def test_an_unknown_name_lists_the_published_ones(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError) as caught:
        relmo.load(name)
    if name:
        assert repr(name) in str(caught.value)
        assert all(published in str(caught.value) for published in PUBLISHED)


def test_a_directory_named_like_a_published_model_is_preferred(tmp_path, monkeypatch, bilm_tf):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELMO_OFFLINE", "1")
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FormatError, match="RELMO_OFFLINE"):
        relmo.load("small")
    (tmp_path / "folder").rename("small")
    assert read_model("small").config.lstm.projection_dim == bilm_tf[0]["lstm"]["projection_dim"]
