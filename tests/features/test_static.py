"""Vectors that know no context, from the files in which they are passed around."""

import gzip

import numpy as np
import pytest

import relmo
from relmo.errors import DataError, FormatError
from relmo.features.static import StaticVectors

WORDS = ["the", "cat", "sat"]
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4) / 8


def as_text(words=WORDS, matrix=MATRIX, header=False):
    lines = [f"{len(words)} {matrix.shape[1]}"] if header else []
    lines += [" ".join([word, *map(str, row)]) for word, row in zip(words, matrix, strict=True)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_text_files(tmp_path, header, packed):
    data = as_text(header=header).encode()
    path = tmp_path / "vectors.txt"
    path.write_bytes(gzip.compress(data) if packed else data)
    vectors = StaticVectors.load(path)
    assert vectors.words == tuple(WORDS)
    assert np.array_equal(vectors.matrix, MATRIX)
    assert (len(vectors), vectors.dim) == (3, 4)


@pytest.mark.parametrize("name", ["", "vectors.npy"])
def test_a_matrix_and_its_words(tmp_path, name):
    np.save(tmp_path / "vectors.npy", MATRIX)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    vectors = relmo.StaticVectors.load(tmp_path / name)
    assert vectors.words == tuple(WORDS)
    assert np.array_equal(vectors.vector("cat"), MATRIX[1])
    assert np.array_equal(StaticVectors.load(tmp_path, max_words=2).matrix, MATRIX[:2])


def test_looking_up():
    vectors = StaticVectors(WORDS, MATRIX)
    assert np.array_equal(vectors.vector("Cat"), MATRIX[1])  # all words here are lower-case
    assert not vectors.vector("zebra").any()
    assert "The" in vectors
    assert "zebra" not in vectors
    exact = StaticVectors(["The", "the"], MATRIX[:2])
    assert np.array_equal(exact.vector("The"), MATRIX[0])
    assert "THE" not in exact


def test_sentences():
    one, none = StaticVectors(WORDS, MATRIX).embed([["the", "zebra"], []])
    assert np.array_equal(one, [MATRIX[0], np.zeros(4)])
    assert none.shape == (0, 4)


def test_words_with_spaces_and_repeated_ones(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("a 1 2\n. . . 3 4\na 5 6\n")
    vectors = StaticVectors.load(path)
    assert vectors.words == ("a", ". . .", "a")
    assert vectors.vector("a").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no vectors"),
        ("the 1 2\ncat 1\n", "line 2: expected a word and 2 numbers"),
        ("the 1 2\ncat 1 x\n", "line 2"),
        ("the 1 2\ncat 1 nan\n", "line 2"),
        ("word\n", "vectors of 0"),
    ],
)
def test_damaged_text(tmp_path, text, said):
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises((FormatError, DataError), match=said):
        StaticVectors.load(path)


def test_matrices_that_do_not_fit(tmp_path):
    np.save(tmp_path / "vectors.npy", MATRIX)
    (tmp_path / "vocab.txt").write_text("the\n")
    with pytest.raises(FormatError, match="1 words need a matrix of as many rows"):
        StaticVectors.load(tmp_path)
    np.save(tmp_path / "vectors.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="Cannot read"):
        StaticVectors.load(tmp_path)
    whole = (tmp_path / "vectors.npy").read_bytes()
    for damaged in (b"", whole[:20], whole.replace(b"{", b"("), whole[:12] + b"\0" + whole[13:]):
        (tmp_path / "vectors.npy").write_bytes(damaged)
        with pytest.raises(FormatError, match="Cannot read"):
            StaticVectors.load(tmp_path)
    np.save(tmp_path / "vectors.npy", np.ones((1, 2), dtype=np.int64))
    with pytest.raises(FormatError, match="not floating-point"):
        StaticVectors.load(tmp_path)
    with pytest.raises(DataError, match="Cannot read"):
        StaticVectors.load(tmp_path / "nothing.txt")


def test_static_vectors_are_features():
    vectors = StaticVectors(WORDS, MATRIX)
    layers = vectors.batch([["the", "unheard-of"], []], boundaries=True)
    assert layers.values.shape == (1, 2, 4, 4)
    assert layers.mask.sum(dim=1).tolist() == [4, 2]
    assert layers.values[0, 0, 1].tolist() == MATRIX[0].tolist()
    assert not layers.values[0, 0, [0, 2, 3]].any()
    same, other = StaticVectors(WORDS, MATRIX.copy()), StaticVectors(WORDS, MATRIX + 1)
    assert vectors.identity == same.identity != other.identity
    assert StaticVectors(WORDS[::-1], MATRIX).identity != vectors.identity
