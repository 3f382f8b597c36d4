"""An index of contextual word vectors for nearest-neighbour search.

An index is a directory:

index.json            format version, number of vectors, and what they are of
vectors.safetensors   the vectors, and the sentence and place of each (index_tables.py)
contexts.jsonl        the tokens of each sentence (index_tables.py)
faiss.index           optional: a faiss index for approximate search (approximate.py)

It is written as a stream and memory-mapped when opened, so that memory use is bounded.
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
QUERIES = 256  # per search


@dataclass(frozen=True)
class Hit:
    """An occurrence that was found.

    Attributes:
        score: cosine similarity.
        tokens: the tokens of its sentence.
        place: the place of the word among them, from 0.
    """

    score: float
    tokens: tuple[str, ...]
    place: int

    @property
    def word(self) -> str:
        """The token itself."""
        return self.tokens[self.place]

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return {"score": self.score, "tokens": list(self.tokens), "place": self.place}


class VectorIndex:
    """An index of word occurrences, searched by cosine similarity.

    Search is exact, or approximate by faiss if the index was built for it.

    Attributes:
        about: what the vectors are of, as given when the index was written.
        is_approximate: whether it was built for approximate search.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("novel.txt").write_text("The cat sat. A dog ran.")
        >>> _ = relmo.build_index("novel.txt", "novel.index", "en")
        >>> index = relmo.VectorIndex("novel.index")
        >>> ((hit,),) = index.search(relmo.load("en").embed("A dog ran.")[1:2], k=1)
        >>> hit.word, hit.place
        ('dog', 1)
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
            queries: vectors of any norm but zero: only their directions count.
            k: number of hits per query.
            without: tokens of a sentence to leave out, such as the one that the query comes from.
            exact: search exactly, even if the index has approximate search.
        """
        if k < 1:
            raise ConfigError(f"k is {k}; expected 1 or more.", settings=["k"])
        queries = np.asarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ConfigError(
                f"The index holds vectors of dimension {self.dim}, the query has shape "
                f"{list(queries.shape)}: they belong to different models."
            )
        left_out = None if without is None else tuple(without)
        n_more = len(without or ())  # a sentence is indexed once, with all its tokens at most
        hits = []
        for start in range(0, len(queries), QUERIES):
            some = normalized(queries[start : start + QUERIES])
            for scores, rows in zip(*self._nearest(some, k + n_more, exact), strict=True):
                contexts = self._tables.contexts(rows)
                found = (Hit(float(s), *c) for s, c in zip(scores, contexts, strict=True))
                hits.append([hit for hit in found if hit.tokens != left_out][:k])
        return hits

    def recall(self, k: int = 10, n_queries: int = 200) -> float:
        """Recall@k of approximate search: the share of the k nearest that it finds.

        Queries are a fixed sample of the index's own vectors. A vector does not count as its own
        neighbour; others that are as near as the k-th do count.
        """
        if min(k, n_queries) < 1:
            raise ConfigError(
                f"k is {k}, n_queries is {n_queries}; expected 1 or more of each.",
                settings=["k", "queries"],
            )
        if not self.is_approximate:
            raise ConfigError(
                f"{self._path} has no approximate search, so its recall is 1. Build an index with "
                "approximate search to measure its recall."
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

    Duplicate sentences are indexed once.

    Args:
        directory: a new directory.
        sentences: tokens and vectors of each sentence, as a stream.
        about: what the vectors are of, stored in the index.
        stop_words: words to leave out, in lower case.
        words: index only these words, in lower case.
        approximate: also build a faiss index, for approximate search.
    """
    if approximate:
        import_faiss()  # fails before the work if faiss is missing
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
    if not directory.is_dir():
        found = "it is a file" if directory.exists() else "there is no such directory"
        raise FormatError(
            f"{directory} is not an index: {found}. Give the directory of one, or build one with "
            "`relmo index build` or relmo.build_index.",
            settings=["index"],
        )
    try:
        values = json.loads((directory / "index.json").read_text(encoding="utf-8"))
        version, about = values["format_version"], dict(values["about"])
        sizes = {"vectors": int(values["vectors"]), "dim": int(values["dim"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{directory} is not an index ({error!r}). Build one with `relmo index build` or "
            "relmo.build_index."
        ) from None
    if version != FORMAT_VERSION:
        raise FormatError(f"{directory} has format_version {version!r}; this relmo reads 1.")
    return {**values, **sizes, "about": about}
