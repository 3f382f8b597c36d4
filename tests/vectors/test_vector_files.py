"""Vectors read back from what `relmo embed` writes, and an index of them."""

import json

import h5py
import numpy as np
import pytest
import safetensors.numpy
import torch
from tolerance import network_rounding

import relmo
from relmo.errors import ConfigError, DataError, FormatError
from relmo.text.reading import TextOptions
from relmo.vectors import vector_files
from relmo.vectors.bulk import embed_lines
from relmo.vectors.corpus_index import IndexOptions, build_index
from relmo.vectors.sinks import SINKS, open_sink

LINES = ["the cat saw a bird", "the cats ran", "", "a bird ran", "the cats ran", "birds saw cats"]
ENDINGS = [".hdf5", ".safetensors", ".parquet", ".jsonl"]


@pytest.fixture
def embedded(tiny, tmp_path):
    """A file of vectors as `relmo embed` writes it."""

    def embedded(ending, layers="average", dtype="float32", lines=LINES):
        path = tmp_path / f"vectors{ending}"
        with open_sink(path, dtype=dtype) as sink:
            for line, tokens, vectors in embed_lines(tiny, lines, layers=layers):
                sink.write(line, tokens, vectors)
        return path

    return embedded


def found_in(index, query):
    (hits,) = index.search(query[None], k=len(index))
    return {(hit.tokens, hit.place): hit.score for hit in hits}


def test_every_sink_is_a_source_but_the_one_without_sentences(tmp_path):
    assert set(vector_files.SOURCES) == set(SINKS) - {".npz"}
    with pytest.raises(ConfigError, match="holds vectors without their sentences"):
        next(vector_files.read_vectors(tmp_path / "vectors.npz"))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("layers", "dtype"), [("all", "float32"), (2, "float16")])
def test_an_index_of_the_file_is_that_of_the_text(tmp_path, tiny, embedded, ending, layers, dtype):
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    text, top = tmp_path / "text.txt", IndexOptions(2)
    one = build_index(text, tmp_path / "one", tiny, options=top, text_options=TextOptions())
    file = [embedded(ending, layers, dtype)]
    two = build_index(file, tmp_path / "two", tiny, options=top)
    assert two.about == one.about
    query = tiny.embed([["a", "cat"]], layers=2)[0][1]
    expected, found = found_in(one, query), found_in(two, query)
    bound = network_rounding(tiny.config, 5)
    assert found == pytest.approx(expected, abs=bound if dtype == "float32" else 1e-3)


@pytest.mark.parametrize("layers", ["average", "top", 0])
def test_one_of_all_layers_is_taken(tiny, embedded, layers):
    (tokens, vectors), *rest = vector_files.read_embedded(embedded(".hdf5", "all"), tiny, layers)
    assert tokens == LINES[0].split()
    bound = network_rounding(tiny.config, 5)
    assert np.allclose(vectors, tiny.embed(LINES[0], layers=layers), atol=bound)
    assert len(rest) == 3  # without the empty one, and the last of two that are equal


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("layers", ["average", "all"])
def test_what_was_written_comes_back(monkeypatch, tiny, embedded, ending, layers):
    monkeypatch.setattr(vector_files, "_BATCH_BYTES", 1)  # parquet: a row at a time
    read = {}
    for sentence, vectors in vector_files.read_vectors(embedded(ending, layers)):
        assert isinstance(sentence, str) == (ending in (".hdf5", ".safetensors"))
        read[sentence if isinstance(sentence, str) else " ".join(sentence)] = vectors
    assert set(read) - {""} == set(LINES) - {""}
    bound = network_rounding(tiny.config, 5)
    for line in set(LINES) - {""}:
        assert np.allclose(read[line], tiny.embed(line, layers=layers), atol=bound)


def test_text_and_vectors_are_told_apart_by_their_endings():
    assert vector_files.are_vectors(["a.HDF5", "b.jsonl"])
    assert not vector_files.are_vectors(["a.txt", "b.gz", "-"])
    with pytest.raises(ConfigError, match=r"b.h5 holds vectors and a.txt text"):
        vector_files.are_vectors(["a.txt", "b.h5"])


def test_the_wrong_model_layer_or_tokenizer(tmp_path, tiny, tiny_contents, embedded):
    def refused(error, match, embedder=tiny, layers="average"):
        with pytest.raises(error, match=match):
            build_index(path, tmp_path / "index", embedder, options=IndexOptions(layers))
        assert not (tmp_path / "index").exists()

    path = embedded(".hdf5")
    other = relmo.Model(tiny_contents)
    with torch.no_grad():
        other.bilm.forward_stack[0].bias.add_(0.1)
    refused(ConfigError, r"'the cat saw a bird': the vectors are not those.*'average'", other)
    refused(ConfigError, "not those that this model gives for layer 1", layers=1)
    refused(ConfigError, "one vector per token", layers="all")
    characters = relmo.Model(tiny_contents, tokenizer="characters")
    refused(DataError, r"for \d+ tokens by the tokenizer 'characters'", characters)
    path = embedded(".hdf5", [0, 1])
    refused(DataError, r"shape \[2, 5, ")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file(embedded, ending, share):
    path = embedded(ending)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    if share == 0 and ending == ".jsonl":
        assert list(vector_files.read_vectors(path)) == []
        return
    with pytest.raises((FormatError, DataError), match="vectors"):
        list(vector_files.read_vectors(path))


@pytest.mark.parametrize(
    "line",
    [
        "a sentence of text",
        "7",
        '{"tokens": ["a"]}',
        '{"tokens": "a", "vectors": [[1]]}',
        '{"tokens": [1], "vectors": [[1]]}',
        '{"tokens": ["a"], "vectors": [["b"]]}',
        '{"tokens": ["a", "b"], "vectors": [[1], [1, 2]]}',
        '{"tokens": ["a", "b"], "vectors": [[1]]}',
        '{"tokens": ["a"], "vectors": [1]}',
        '{"tokens": ["a"], "vectors": [[NaN]]}',
        '{"tokens": ["a"], "vectors": [[1e99]]}',
        "[" * 100_000,
    ],
)
def test_lines_that_are_no_vectors(tmp_path, line):
    path = tmp_path / "vectors.jsonl"
    path.write_text(line + "\n")
    with pytest.raises((FormatError, DataError), match=r"vectors\.jsonl"):
        list(vector_files.read_vectors(path))


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(vector_files.read_vectors(tmp_path / "vectors.hdf5"))


def fill_hdf5(file, kind):
    listed, texts = h5py.string_dtype(), json.dumps({"a": "0"})
    if kind == "no sentences":
        return
    if kind == "sentences are numbers":
        file["sentence_to_index"] = [1]
        return
    texts = {"no object": "[]", "no number": '{"a": "b"}'}.get(kind, texts)
    file.create_dataset("sentence_to_index", data=[texts], dtype=listed)
    if kind == "integers":
        file["0"] = np.ones((1, 2), int)
    elif kind == "a group":
        file.create_group("0")
    elif kind == "a link":
        file["0"] = h5py.ExternalLink("other.hdf5", "0")
    elif kind == "huge":
        file.create_dataset("0", (1 << 20, 1 << 20), "f4", chunks=(1, 1024), compression="gzip")
    elif kind == "one axis":
        file["0"] = np.ones(3, np.float32)
    elif kind == "external":
        file.create_dataset("0", (1, 2), "f4", external=[("/etc/passwd", 0, 8)])


@pytest.mark.parametrize(
    "kind",
    [
        *("no sentences", "sentences are numbers", "no object", "no number", "missing"),
        *("integers", "a group", "a link", "huge", "one axis", "external"),
    ],
)
def test_hostile_hdf5(tmp_path, kind):
    path = tmp_path / "vectors.hdf5"
    with h5py.File(path, "w") as file:
        fill_hdf5(file, kind)
    with pytest.raises(FormatError, match="damaged, or was not written by"):
        list(vector_files.read_vectors(path))


@pytest.mark.parametrize("sentences", [None, "[", '["a", "b"]', "[7]", "{}", "3"])
def test_hostile_safetensors(tmp_path, sentences):
    path = tmp_path / "vectors.safetensors"
    facts = None if sentences is None else {"sentences": sentences}
    safetensors.numpy.save_file({"0": np.ones((1, 2), np.float32)}, path, facts)
    if sentences == "{}":
        assert list(vector_files.read_vectors(path)) == []  # no sentence, no vector
        return
    with pytest.raises(FormatError, match="damaged, or was not written by"):
        list(vector_files.read_vectors(path))


def test_hostile_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "vectors.parquet"

    def refused(facts=None, **other):
        flat = arrow.array([1.0, 2.0, 3.0, 4.0], arrow.float32())
        columns = {
            "sentence": [0, 0],
            "position": arrow.array([0, 1], arrow.int32()),
            "token": ["a", "b"],
            "vector": arrow.FixedSizeListArray.from_arrays(flat, 2),
        } | other
        facts = {"n_layers": "1", "dim": "2"} if facts is None else facts
        columns = {name: value for name, value in columns.items() if value is not None}
        parquet.write_table(arrow.table(columns, metadata=facts), path)
        with pytest.raises(FormatError, match="damaged, or was not written by"):
            list(vector_files.read_vectors(path))

    refused({})
    refused({"n_layers": "3", "dim": "2"})
    refused({"n_layers": "-1", "dim": "-2"})
    refused(vector=[[1.0], [2.0]])
    refused(vector=[1.0, 2.0])
    refused(vector=None)
    refused(token=None)
    refused(token=["a", None])
    refused(position=arrow.array([1, 0], arrow.int32()))
    refused(sentence=["a", "b"])
