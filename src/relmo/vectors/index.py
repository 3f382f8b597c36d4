"""Vectors of words in their sentences, to be searched for the nearest ones.

An index is a directory:

index.json            format, what the vectors are of, and how many
vectors.safetensors   and
contexts.jsonl        the vectors and the sentences that they are in (index_tables.py)
faiss.index           where it was asked for: for approximate search (approximate.py)

It is written as a stream and mapped into memory when it is opened, so that neither needs memory for
more than a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from relmo.arrays import Array, IntArray
from relmo.errors import ConfigError, DataError, FormatError
from relmo.files import directory_written_atomically
from relmo.vectors.approximate import (
    Approximate,
    import_faiss,
    read_approximate,
    write_approximate,
)
from relmo.vectors.index_tables import Tables, TableWriter, normalized

FORMAT_VERSION = 1
QUERIES = 256  # that are searched for at a time


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
    """Occurrences of words, searched by cosine.

    Exactly, or through faiss where the index was built for that.

    Attributes:
        about: what the vectors are of, as it was told when they were written.
        is_approximate: whether it was built for approximate search.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory)
        values = _read_values(self._path)
        self.about, self._digest = values["about"], values.get("faiss")
        self.is_approximate = self._digest is not None
        self._tables = Tables(self._path, values["vectors"], values["dim"])

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self._tables.vectors.shape[1])

    def search(
        self,
        queries: Array,
        k: int = 10,
        *,
        without: Sequence[str] | None = None,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """The k nearest occurrences of each query (Q, D), best first.

        Args:
            queries: of any length but zero.
            k: how many.
            without: tokens of a sentence to leave out: the one that a query comes from.
            exact: compare with every vector, whatever the index was built for.
        """
        if k < 1:
            raise ConfigError(f"-k is {k}; expected 1 or more.")
        queries = np.asarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ConfigError(
                f"The index holds vectors of {self.dim}, the query has {list(queries.shape)}: they "
                "are not of the same model."
            )
        left_out = None if without is None else tuple(without)
        n_more = len(without or ())  # a sentence is there once, with at most all its tokens
        hits = []
        for start in range(0, len(queries), QUERIES):
            some = normalized(queries[start : start + QUERIES])
            for scores, rows in zip(*self._nearest(some, k + n_more, exact), strict=True):
                contexts = self._tables.contexts(rows)
                found = (Hit(float(s), *c) for s, c in zip(scores, contexts, strict=True))
                hits.append([hit for hit in found if hit.tokens != left_out][:k])
        return hits

    def recall(self, k: int = 10, n_queries: int = 200) -> float:
        """The share of the k nearest that approximate search finds.

        Vectors of the index itself are looked for, and do not count as found: a sample, always the
        same. Others that are as near as the k-th do count.
        """
        if min(k, n_queries) < 1:
            raise ConfigError(f"-k is {k}, queries are {n_queries}; expected 1 or more of each.")
        if not self.is_approximate:
            raise ConfigError(
                f"{self._path} is searched exactly and misses nothing. Build an index with "
                "--approximate to measure that."
            )
        return self._approximate.recall(k, n_queries)

    def _nearest(self, queries: Array, k: int, exact: bool = False) -> tuple[Array, IntArray]:
        if exact or not self.is_approximate:
            return self._tables.nearest(queries, k)
        return self._approximate.nearest(queries, k)

    @cached_property
    def _approximate(self) -> Approximate:
        return read_approximate(self._path, str(self._digest), self._tables)


def write_index(
    directory: str | Path,
    sentences: Iterable[tuple[Sequence[str], Array]],
    *,
    about: Mapping[str, Any],
    stop_words: Collection[str] = (),
    words: Collection[str] | None = None,
    approximate: bool = False,
) -> VectorIndex:
    """Write an index of sentences, each as tokens and vectors (tokens, D), and open it.

    A sentence that comes twice is taken once.

    Args:
        directory: a new one.
        sentences: what to take, as a stream.
        about: what the vectors are of, kept with them.
        stop_words: words to leave out, in lower case.
        words: take only these, in lower case.
        approximate: make it ready for approximate search as well, by faiss.
    """
    if approximate:
        import_faiss()  # that it is missing is told before the work
    stopped, wanted = frozenset(stop_words), None if words is None else frozenset(words)
    with directory_written_atomically(Path(directory)) as folder:
        with TableWriter(folder) as writer:
            for tokens, vectors in sentences:
                lower = [token.lower() for token in tokens]
                places = [
                    place
                    for place, word in enumerate(lower)
                    if word not in stopped and (wanted is None or word in wanted)
                ]
                writer.add(tokens, vectors, places)
        if not writer.n_vectors:
            raise DataError("There is no word to index in this text. Give more, or other words.")
        values: dict[str, Any] = {"format_version": FORMAT_VERSION}
        values |= {"vectors": writer.n_vectors, "dim": writer.dim, "about": dict(about)}
        if approximate:
            tables = Tables(folder, writer.n_vectors, writer.dim)
            values["faiss"] = write_approximate(folder, tables)
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (folder / "index.json").write_text(text, encoding="utf-8")
    return VectorIndex(directory)


def _read_values(directory: Path) -> dict[str, Any]:
    try:
        values = json.loads((directory / "index.json").read_text(encoding="utf-8"))
        version, about = values["format_version"], dict(values["about"])
        sizes = {"vectors": int(values["vectors"]), "dim": int(values["dim"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{directory} is no index ({error!r}): `relmo index build` makes one."
        ) from None
    if version != FORMAT_VERSION:
        raise FormatError(f"{directory} has format_version {version!r}; this relmo reads 1.")
    return {**values, **sizes, "about": about}
