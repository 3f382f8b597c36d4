"""Static vectors: one per word, whatever its context, as GloVe, word2vec and fastText have them.

They are read from text files (per line a word and its numbers, with or without a first line that
holds the counts; compressed or not), or from a matrix in `.npy` beside a `vocab.txt` with one word
per line. They are features: alone, or beside those of a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tokenize import TokenError

import numpy as np

from relmo.arrays import Array
from relmo.errors import DataError, FormatError
from relmo.features.layers import Layers, Sentences, pad_arrays
from relmo.text.corpus import read_lines

MAX_DIM = 4096
# What NumPy raises for a header that is none.
_DAMAGED = (OSError, ValueError, SyntaxError, TokenError, EOFError, TypeError, OverflowError)
_MATRIX, _WORDS = "vectors.npy", "vocab.txt"


class StaticVectors:
    """Words and their vectors; a word that is not there has zeros.

    A word is looked up as it is and, where all words here are lower-case, in lower case.

    Attributes:
        words: by falling frequency, as far as the file has them so.
        matrix: (V, D) one row per word, perhaps mapped into memory.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("glove.txt").write_text("cat 1.0 0.0")
        >>> vectors = relmo.StaticVectors.load("glove.txt")
        >>> vectors.embed([["Cat", "unheard-of"]])[0].tolist()
        [[1.0, 0.0], [0.0, 0.0]]
    """

    n_layers = 1

    def __init__(self, words: Sequence[str], matrix: Array, name: str = "static") -> None:
        self.name = name
        if matrix.ndim != 2 or len(words) != len(matrix):
            raise FormatError(
                f"{len(words):,} words need a matrix of as many rows, found {list(matrix.shape)}."
            )
        self.words = tuple(words)
        self.matrix = matrix

    @classmethod
    def load(cls, path: str | Path, *, max_words: int | None = None) -> StaticVectors:
        """Read a text file, a `.npy` with `vocab.txt` beside it, or a directory with these two.

        Args:
            path: what to read.
            max_words: read no more than so many, the first ones.
        """
        path = Path(path)
        if path.is_dir() or path.suffix == ".npy":
            folder, matrix = (path, path / _MATRIX) if path.is_dir() else (path.parent, path)
            return cls._load_matrix(matrix, folder / _WORDS, max_words)
        words, rows = [], []
        for word, row in _read_rows(path):
            words.append(word)
            rows.append(row)
            if len(words) == max_words:
                break
        if not rows:
            raise FormatError(f"{path} holds no vectors: expected lines of a word and its numbers.")
        return cls(words, np.stack(rows), path.name)

    @classmethod
    def _load_matrix(cls, matrix: Path, words: Path, max_words: int | None) -> StaticVectors:
        try:
            values = np.lib.format.open_memmap(matrix, mode="r")  # never unpickles, nor unzips
        except _DAMAGED as error:
            raise FormatError(
                f"Cannot read {matrix} ({error}): expected a matrix that NumPy has saved."
            ) from None
        if values.dtype.kind != "f":
            raise FormatError(f"{matrix} holds {values.dtype}, not floating-point numbers.")
        listed = list(read_lines(words))
        return cls(listed[:max_words], values[:max_words], matrix.parent.name)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.number(word) is not None

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self.matrix.shape[1])

    def number(self, word: str) -> int | None:
        """The place of a word, or None."""
        found = self._numbers.get(word)
        return self._numbers.get(word.lower()) if found is None and self._lower_case else found

    def vector(self, word: str) -> Array:
        """(D,) of a word."""
        number = self.number(word)
        if number is None:
            return np.zeros(self.dim, np.float32)
        return np.asarray(self.matrix[number], np.float32)

    def embed(self, sentences: Iterable[Sequence[str]]) -> list[Array]:
        """Return (tokens, D) per sentence, as `Model.embed` does for lists of tokens."""
        none = np.zeros((0, self.dim), np.float32)
        return [np.stack([self.vector(t) for t in s]) if len(s) else none for s in sentences]

    def batch(self, sentences: Sentences, *, boundaries: bool = False) -> Layers:
        """Look up the vectors of tokenised sentences; those of boundaries are zeros."""
        arrays = (vectors[None] for vectors in self.embed(sentences))
        return pad_arrays(arrays, 1, self.dim, boundaries=boundaries)

    @cached_property
    def identity(self) -> str:
        """A digest of the words and their vectors."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\n".join(self.words).encode("utf-8", "surrogatepass"))
        digest.update(np.ascontiguousarray(self.matrix).tobytes())
        return digest.hexdigest()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for number, word in enumerate(self.words):
            numbers.setdefault(word, number)  # of repeated words, the more frequent one
        return numbers

    @cached_property
    def _lower_case(self) -> bool:
        return all(word == word.lower() for word in self.words)


def _read_rows(path: Path) -> Iterator[tuple[str, Array]]:
    dim = None
    for number, line in enumerate(read_lines(path, errors="replace"), start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            dim = int(fields[1])  # word2vec and fastText begin with both counts
            continue
        dim = dim or len(fields) - 1
        if not 1 <= dim <= MAX_DIM:
            raise FormatError(f"{path}, line {number}: found vectors of {dim}, not 1 to {MAX_DIM}.")
        # From the end: a few words of GloVe hold spaces.
        word, values = " ".join(fields[:-dim]), fields[-dim:]
        try:
            row = np.array(values, dtype=np.float32)
        except ValueError:
            row = np.empty(0, np.float32)
        if not word or len(row) != dim or not np.isfinite(row).all():
            raise DataError(
                f"{path}, line {number}: expected a word and {dim} numbers, found {line[:60]!r}."
            )
        yield word, row
