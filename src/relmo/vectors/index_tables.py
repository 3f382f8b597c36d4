"""The tables of an index: written as a stream, memory-mapped, searched exactly.

vectors.safetensors   vectors (N, D), normalised; sentence (N,) and place (N,) of each; starts (S,):
                      the offset of each sentence in contexts.jsonl
contexts.jsonl        the tokens of each distinct sentence
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError

from relmo.arrays import Array, IntArray
from relmo.errors import FormatError
from relmo.mapped import map_safetensors

BLOCK = 1 << 14  # vectors per matrix product
RESIDENT_BYTES = 1 << 27  # of memory-mapped vectors that may stay resident
_VECTORS, _CONTEXTS = "vectors.safetensors", "contexts.jsonl"
_HEADER_BYTES = 4096  # reserved for the header of safetensors, which is known at the end
_DTYPES = {"vectors": "F32", "sentence": "I32", "place": "I32", "starts": "I64"}


class Tables:
    """The memory-mapped tables of an index.

    Attributes:
        vectors: (N, D), normalised to length 1.
    """

    def __init__(self, folder: Path, n_vectors: int, dim: int) -> None:
        self._folder = folder
        try:
            arrays, self._map = map_safetensors(folder / _VECTORS)
            tables = {name: _checked(arrays[name], name) for name in _DTYPES}
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise FormatError(f"{folder} is a damaged index ({error!r}). Build it again.") from None
        self.vectors: Array = tables["vectors"]
        self._sentences, self._places = tables["sentence"], tables["place"]
        self._starts = tables["starts"]
        if self.vectors.shape != (n_vectors, dim) or not (
            self._sentences.shape == self._places.shape == (n_vectors,)
        ):
            raise FormatError(f"{folder}: the tables do not fit together. Build it again.")

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """Yield all vectors block by block, each with its first row, in bounded memory."""
        n_bytes = 0
        for start in range(0, len(self), BLOCK):
            block = self.vectors[start : start + BLOCK]
            yield start, block
            n_bytes += block.nbytes
            if n_bytes > RESIDENT_BYTES:
                self.release()
                n_bytes = 0

    def release(self) -> None:
        """Drop the pages that were read from this process; the system may keep them cached."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def nearest(self, queries: Array, k: int) -> tuple[Array, IntArray]:
        """Scores and rows, (Q, k) each or fewer, best first; equal scores by row."""
        best: Any = np.empty((len(queries), 0), np.float32)
        rows: Any = np.empty((len(queries), 0), np.int64)
        for start, block in self.blocks():
            scores = queries @ block.T  # (Q, n)
            columns = np.arange(len(block))
            if best.shape[1] == k:  # skip what cannot be among the k best
                columns = np.flatnonzero((scores > best[:, -1:]).any(axis=0))
                scores = scores[:, columns]
            if len(columns) > k:
                worst = np.partition(scores, -k, axis=1)[:, -k, None]  # k-th best, (Q, 1)
                near = np.flatnonzero((scores >= worst).any(axis=0))
                columns, scores = columns[near], scores[:, near]
            found = np.broadcast_to(columns + start, scores.shape)
            best, rows = np.hstack([best, scores]), np.hstack([rows, found])
            order = np.argsort(-best, axis=1, kind="stable")[:, :k]
            best, rows = (np.take_along_axis(a, order, axis=1) for a in (best, rows))
        return best, rows

    def contexts(self, rows: Sequence[int] | IntArray) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the tokens of the sentence of each row, and the row's place in it."""
        with (self._folder / _CONTEXTS).open("rb") as file:
            for row in rows:
                try:
                    file.seek(int(self._starts[self._sentences[row]]))
                    tokens, place = tuple(json.loads(file.readline())), int(self._places[row])
                    if not 0 <= place < len(tokens):
                        raise IndexError(f"place {place} of {len(tokens)}")
                except (OSError, IndexError, TypeError, ValueError) as error:
                    raise FormatError(
                        f"{self._folder} is a damaged index ({error!r}). Build it again."
                    ) from None
                yield tokens, place


def _checked(table: Any, name: str) -> Any:
    expected = f"<{_DTYPES[name][0].lower()}{int(_DTYPES[name][1:]) // 8}"
    if table.dtype != np.dtype(expected):
        raise ValueError(f"{name} is {table.dtype}, not {np.dtype(expected)}")
    return table


class TableWriter:
    """Writes the tables of a new index, sentence by sentence."""

    def __init__(self, folder: Path) -> None:
        self.n_vectors = self.dim = 0
        self._vectors: BinaryIO = (folder / _VECTORS).open("wb")
        self._contexts: BinaryIO = (folder / _CONTEXTS).open("wb")
        self._seen: set[bytes] = set()
        self._sentences, self._places, self._starts = array("i"), array("i"), array("q")

    def add(self, tokens: Sequence[str], vectors: Array, places: list[int]) -> None:
        """Add the vectors at some places of a sentence, unless the sentence was added before."""
        line = json.dumps([*tokens], ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        digest = hashlib.blake2b(line, digest_size=16).digest()
        if not places or digest in self._seen:
            return
        self._seen.add(digest)
        if not self.dim:
            self.dim = vectors.shape[1]
            self._vectors.write(bytes(8 + _HEADER_BYTES))
        self._vectors.write(normalized(vectors[places]).astype("<f4").tobytes())
        self._sentences.extend([len(self._starts)] * len(places))
        self._places.extend(places)
        self._starts.append(self._contexts.tell())
        self._contexts.write(line)
        self.n_vectors += len(places)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if self.n_vectors:
            self._finish()
        self._vectors.close()
        self._contexts.close()

    def _finish(self) -> None:
        n = self.n_vectors
        parts: dict[str, tuple[list[int], bytes | None]] = {
            "vectors": ([n, self.dim], None),  # already written
            "starts": ([len(self._starts)], np.asarray(self._starts, "<i8").tobytes()),
            "sentence": ([n], np.asarray(self._sentences, "<i4").tobytes()),
            "place": ([n], np.asarray(self._places, "<i4").tobytes()),
        }
        header, end = {}, 0
        for name, (shape, data) in parts.items():
            start, end = end, end + (4 * n * self.dim if data is None else len(data))
            header[name] = {"dtype": _DTYPES[name], "shape": shape, "data_offsets": [start, end]}
            self._vectors.write(data or b"")
        text = json.dumps(header).encode().ljust(_HEADER_BYTES)
        self._vectors.seek(0)
        self._vectors.write(struct.pack("<Q", _HEADER_BYTES) + text)


def normalized(vectors: Array) -> Array:
    """Normalise vectors to length 1."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)
