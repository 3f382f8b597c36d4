"""Where each distinct sentence of a data set stands in a store, known before a vector is computed.

The rows of a data set are its tokens, boundaries included, sentence after sentence. Sentences are
sorted by length, so that batches of neighbours need little padding, then by hash: the same set of
sentences gives the same plan, and a killed fill resumes where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relmo.arrays import IntArray
from relmo.errors import DataError
from relmo.features.manifest import DTYPES

Hashes = NDArray[np.bytes_]

OPENING, CLOSING = 0, 1  # the boundaries among the numbers of words
# Distinct for distinct lists of tokens, whatever characters are in them.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def hash_sentences(sentences: Sequence[Sequence[str]]) -> Hashes:
    """(S,) a hash of the tokens of each sentence."""
    digests = []
    for sentence in sentences:
        if isinstance(sentence, str):
            raise DataError(
                f"A sentence is {sentence!r:.80}, expected a list of tokens. Tokenise it first."
            )
        try:
            data = _encode(list(sentence)).encode("utf-8", "surrogatepass")
        except TypeError as error:
            raise DataError(
                f"The tokens of a sentence are {sentence!r:.80}, expected strings."
            ) from error
        digests.append(hashlib.blake2b(data, digest_size=16).digest())
    return np.frombuffer(b"".join(digests), DTYPES["bytes16"])


@dataclass(frozen=True)
class Plan:
    """The rows of a data set.

    Attributes:
        sentences: distinct, in the order of their rows.
        starts: (S + 1,) the first row of each of them, and the number of all rows.
        hashes: (S,) of the sentences, sorted.
        spans: (S, 2) first row of each, and one more than its last, in the order of `hashes`.
        words: (N,) the number of each row's word; words are numbered as they come.
        word_stops: (S + 1,) how many words have come before each sentence, and in all.
    """

    sentences: list[Sequence[str]]
    starts: IntArray
    hashes: Hashes
    spans: IntArray
    words: NDArray[np.int32]
    word_stops: IntArray

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]], hashes: Hashes) -> Plan:
        """Plan the rows of some sentences, each distinct one once.

        Args:
            sentences: in any order.
            hashes: (n,) of each.
        """
        distinct, first = np.unique(hashes, return_index=True)
        lengths = np.array([len(sentences[i]) + 2 for i in first.tolist()], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")  # row order → place among the sorted hashes
        starts = np.concatenate([[0], np.cumsum(lengths[order])])
        spans = np.empty((len(distinct), 2), dtype=np.int64)
        spans[order] = np.stack([starts[:-1], starts[1:]], axis=1)
        ordered = [sentences[i] for i in first[order].tolist()]
        words, word_stops = _number_words(ordered, int(starts[-1]))
        return cls(ordered, starts, distinct, spans, words, word_stops)

    @property
    def n_rows(self) -> int:
        """Tokens of all distinct sentences, boundaries included."""
        return int(self.starts[-1])

    @property
    def n_words(self) -> int:
        """Distinct words, and both boundaries."""
        return int(self.word_stops[-1])

    def chunks(self, first: int, max_rows: int) -> Iterator[slice]:
        """Cut the sentences from `first` on into runs of at most `max_rows`, padded, or of one."""
        start = first
        while start < len(self.sentences):
            stop = start + 1
            while stop < len(self.sentences):
                length = int(self.starts[stop + 1] - self.starts[stop])  # the longest comes last
                if length * (stop + 1 - start) > max_rows:
                    break
                stop += 1
            yield slice(start, stop)
            start = stop


def _number_words(
    sentences: list[Sequence[str]], n_rows: int
) -> tuple[NDArray[np.int32], IntArray]:
    words = np.empty(n_rows, dtype=np.int32)
    stops = np.zeros(len(sentences) + 1, dtype=np.int64)
    numbers: dict[str, int] = {}
    row = 0
    for i, sentence in enumerate(sentences):
        words[row] = OPENING
        words[row + 1 : row + 1 + len(sentence)] = [
            numbers.setdefault(word, len(numbers) + 2) for word in sentence
        ]
        row += len(sentence) + 2
        words[row - 1] = CLOSING
        stops[i + 1] = len(numbers) + 2
    return words, stops
