"""Vectors of words in their sentences, to be searched for the nearest ones.

An index is a directory:

index.json            format, what the vectors are of, and how many
vectors.safetensors   vectors (N, D) of length 1; sentence (N,) and place (N,) of each; where each
                      sentence begins in contexts.jsonl
contexts.jsonl        the tokens of each distinct sentence

It is written as a stream and mapped into memory when it is opened, so that neither needs memory for
more than a block of it.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from relmo.errors import ConfigError, DataError, FormatError
from relmo.files import directory_written_atomically

Array = NDArray[np.float32]

FORMAT_VERSION = 1
BLOCK = 1 << 15  # vectors that are compared at a time
_HEADER_BYTES = 4096  # kept free for the header of safetensors, which is known at the end


@dataclass(frozen=True)
class Hit:
    """An occurrence that was found: cosine, the tokens of its sentence, its place there."""

    score: float
    tokens: tuple[str, ...]
    place: int

    @property
    def word(self) -> str:
        """The token itself."""
        return self.tokens[self.place]


class VectorIndex:
    """Occurrences of words, searched by cosine, exactly.

    Attributes:
        about: what the vectors are of, as it was told when they were written.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory)
        self.about, n, dim = _read_about(self._path)
        try:
            tables = safetensors.torch.load_file(self._path / "vectors.safetensors")
            arrays = {name: tensor.numpy() for name, tensor in tables.items()}
            self._vectors, self._sentences = arrays["vectors"], arrays["sentence"]
            self._places, self._starts = arrays["place"], arrays["starts"]
        except (OSError, SafetensorError, KeyError) as error:
            raise FormatError(
                f"{self._path} is a damaged index ({error!r}). Build it again."
            ) from None
        if self._vectors.shape != (n, dim) or len(self._sentences) != n or len(self._places) != n:
            raise FormatError(f"{self._path}: the tables do not fit together. Build it again.")

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self._vectors.shape[1])

    def search(
        self, queries: Array, k: int = 10, *, without: Sequence[str] | None = None
    ) -> list[list[Hit]]:
        """The k nearest occurrences of each query (Q, D), best first.

        Args:
            queries: of any length but zero.
            k: how many.
            without: tokens of a sentence to leave out: the one that a query comes from.
        """
        if k < 1:
            raise ConfigError(f"-k is {k}; expected 1 or more.")
        queries = np.asarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ConfigError(
                f"The index holds vectors of {self.dim}, the query has {list(queries.shape)}: they "
                "are not of the same model."
            )
        n_left_out = len(without or ())  # a sentence is there once, with at most all its tokens
        scores, rows = self._nearest(_normalized(queries), k + n_left_out)
        left_out = None if without is None else tuple(without)
        hits = []
        with (self._path / "contexts.jsonl").open("rb") as contexts:
            for some_scores, some_rows in zip(scores, rows, strict=True):
                found = (
                    self._hit(contexts, s, r) for s, r in zip(some_scores, some_rows, strict=True)
                )
                hits.append([hit for hit in found if hit.tokens != left_out][:k])
        return hits

    def _nearest(self, queries: Array, k: int) -> tuple[Array, NDArray[np.int64]]:
        """Scores and rows, (Q, k) each or fewer, best first; equal scores by row."""
        best: Any = np.empty((len(queries), 0), np.float32)
        rows: Any = np.empty((len(queries), 0), np.int64)
        for start in range(0, len(self), BLOCK):
            block = np.asarray(self._vectors[start : start + BLOCK], np.float32)
            scores = queries @ block.T  # (Q, n)
            n = min(k, len(block))
            top = np.sort(np.argpartition(-scores, n - 1, axis=1)[:, :n], axis=1)
            best = np.hstack([best, np.take_along_axis(scores, top, axis=1)])
            rows = np.hstack([rows, top + start])
            order = np.argsort(-best, axis=1, kind="stable")[:, :k]
            best, rows = (np.take_along_axis(a, order, axis=1) for a in (best, rows))
        return best, rows

    def _hit(self, contexts: Any, score: float, row: int) -> Hit:
        contexts.seek(int(self._starts[self._sentences[row]]))
        return Hit(float(score), tuple(json.loads(contexts.readline())), int(self._places[row]))


def write_index(
    directory: str | Path,
    sentences: Iterable[tuple[Sequence[str], Array]],
    *,
    about: Mapping[str, Any],
    stop_words: Collection[str] = (),
    words: Collection[str] | None = None,
) -> VectorIndex:
    """Write an index of sentences, each as tokens and vectors (tokens, D), and open it.

    A sentence that comes twice is taken once.

    Args:
        directory: a new one.
        sentences: what to take, as a stream.
        about: what the vectors are of, kept with them.
        stop_words: words to leave out, in lower case.
        words: take only these, in lower case.
    """
    stopped, wanted = frozenset(stop_words), None if words is None else frozenset(words)
    with directory_written_atomically(Path(directory)) as folder:
        with _Writer(folder) as writer:
            for tokens, vectors in sentences:
                lower = [token.lower() for token in tokens]
                places = [
                    place
                    for place, word in enumerate(lower)
                    if word not in stopped and (wanted is None or word in wanted)
                ]
                writer.add(tuple(tokens), vectors, places)
        if not writer.n_vectors:
            raise DataError("There is no word to index in this text. Give more, or other words.")
        values = {"format_version": FORMAT_VERSION, "vectors": writer.n_vectors, "dim": writer.dim}
        text = json.dumps({**values, "about": dict(about)}, indent=2, ensure_ascii=False) + "\n"
        (folder / "index.json").write_text(text, encoding="utf-8")
    return VectorIndex(directory)


class _Writer:
    """The two large files of an index, sentence by sentence."""

    def __init__(self, folder: Path) -> None:
        self.n_vectors = self.dim = 0
        self._vectors = (folder / "vectors.safetensors").open("wb")
        self._contexts = (folder / "contexts.jsonl").open("wb")
        self._seen: set[int] = set()
        self._sentences, self._places, self._starts = array("i"), array("i"), array("q")

    def add(self, tokens: tuple[str, ...], vectors: Array, places: list[int]) -> None:
        if not places or hash(tokens) in self._seen:
            return
        self._seen.add(hash(tokens))
        if not self.dim:
            self.dim = vectors.shape[1]
            self._vectors.write(bytes(8 + _HEADER_BYTES))
        self._vectors.write(_normalized(vectors[places]).astype("<f4").tobytes())
        self._sentences.extend([len(self._starts)] * len(places))
        self._places.extend(places)
        self._starts.append(self._contexts.tell())
        self._contexts.write(json.dumps(tokens, ensure_ascii=False).encode() + b"\n")
        self.n_vectors += len(places)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        if self.n_vectors:
            self._finish()
        self._vectors.close()
        self._contexts.close()

    def _finish(self) -> None:
        n = self.n_vectors
        parts: dict[str, tuple[str, list[int], bytes | None]] = {
            "vectors": ("F32", [n, self.dim], None),  # there already
            "starts": ("I64", [len(self._starts)], np.asarray(self._starts, "<i8").tobytes()),
            "sentence": ("I32", [n], np.asarray(self._sentences, "<i4").tobytes()),
            "place": ("I32", [n], np.asarray(self._places, "<i4").tobytes()),
        }
        header, end = {}, 0
        for name, (dtype, shape, data) in parts.items():
            start, end = end, end + (4 * n * self.dim if data is None else len(data))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
            self._vectors.write(data or b"")
        text = json.dumps(header).encode().ljust(_HEADER_BYTES)
        self._vectors.seek(0)
        self._vectors.write(struct.pack("<Q", _HEADER_BYTES) + text)


def _normalized(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def _read_about(directory: Path) -> tuple[dict[str, Any], int, int]:
    path = directory / "index.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        version, about = values["format_version"], dict(values["about"])
        n, dim = int(values["vectors"]), int(values["dim"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{directory} is no index ({error!r}): `relmo index build` makes one."
        ) from None
    if version != FORMAT_VERSION:
        raise FormatError(f"{directory} has format_version {version!r}; this relmo reads 1.")
    return about, n, dim
