"""Sentences side by side: which go together, and the order in which a network reads them.

Tokens of a batch stand in one flat row, sentence after sentence, so that nothing is padded. A
`Packing` says which of them are read at each step, by either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relmo.arrays import IntArray
from relmo.text.characters import CharacterScheme, TokenIds

T = TypeVar("T")


class Packing:
    """The reading order of sentences of given lengths, longest first, step by step.

    At step t, the first `sizes[t]` rows still have a token to read; a row leaves when its sentence
    ends. So the N tokens of a batch fill N packed places without a gap. The backward direction
    reads each sentence from its end: same sizes, other tokens.

    Attributes:
        lengths: tokens of each sentence, boundaries included, in the caller's order.
        order: (B,) which sentence stands in each row.
        sizes: rows that read a token, for each step; never grows.
        forward: (N,) the flat token read at each packed place, left to right.
        backward: (N,) the same, right to left.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        order = np.argsort(-self.lengths, kind="stable")
        ordered = self.lengths[order]
        n_steps = int(ordered[0]) if len(ordered) else 0
        # sizes[t] = number of sentences longer than t
        sizes = len(ordered) - np.searchsorted(ordered[::-1], np.arange(n_steps), side="right")
        steps = np.repeat(np.arange(n_steps), sizes)  # (N,)
        self.starts = np.concatenate([[0], np.cumsum(sizes)])  # packed place where a step begins
        rows = np.arange(len(steps)) - self.starts[steps]  # (N,)
        first = np.concatenate([[0], np.cumsum(self.lengths)])[order]  # a row's first flat token
        self.order: IntArray = order
        self.sizes: list[int] = sizes.tolist()
        self.forward: IntArray = first[rows] + steps
        self.backward: IntArray = first[rows] + ordered[rows] - 1 - steps

    def windows(self, max_tokens: int) -> Iterator[tuple[slice, slice]]:
        """Cut the steps into runs of at most `max_tokens` tokens (or one step): steps, places."""
        step = 0
        while step < len(self.sizes):
            limit = self.starts[step] + max_tokens
            end = max(int(np.searchsorted(self.starts, limit, side="right")) - 1, step + 1)
            yield slice(step, end), slice(int(self.starts[step]), int(self.starts[end]))
            step = end


@dataclass(frozen=True)
class Batch:
    """Sentences ready for a `BiLm`: each distinct token once, and where each of them stands.

    Attributes:
        ids: what the token encoder reads for the U distinct tokens.
        index: (N,) which of them each flat token is.
        packing: the reading order.
    """

    ids: TokenIds
    index: IntArray
    packing: Packing

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """(B, T) True on real tokens, boundaries included."""
        places = np.arange(len(self.packing.sizes))
        return np.asarray(places < self.packing.lengths[:, None])


def distinct_tokens(
    sentences: Iterable[Sequence[str]], scheme: CharacterScheme
) -> tuple[list[str], IntArray]:
    """Add the boundaries; the distinct tokens in order of appearance, and each token's number."""
    bounded = chain.from_iterable((scheme.begin, *s, scheme.end) for s in sentences)
    numbers: dict[str, int] = {}
    index = [numbers.setdefault(token, len(numbers)) for token in bounded]
    return list(numbers), np.array(index, dtype=np.int64)


def build_batch(sentences: Sequence[Sequence[str]], scheme: CharacterScheme) -> Batch:
    """Tokenised sentences as a batch; empty ones consist of their two boundaries."""
    tokens, index = distinct_tokens(sentences, scheme)
    return Batch(scheme.encode(tokens), index, Packing([len(s) + 2 for s in sentences]))


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sentences of like lengths, at most `max_tokens` tokens (or one sentence) a batch."""
    batches: list[list[int]] = []
    room = 0
    for sentence in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if lengths[sentence] > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(sentence)
        room -= lengths[sentence]
    return batches


def cut_into_pools(
    items: Iterable[T], n_tokens: Callable[[T], int], max_tokens: int
) -> Iterator[list[T]]:
    """Cut a stream of sentences, in order, where `max_tokens` (with boundaries) are together."""
    pool: list[T] = []
    room = max_tokens
    for item in items:
        pool.append(item)
        room -= n_tokens(item) + 2
        if room <= 0:
            yield pool
            pool, room = [], max_tokens
    if pool:
        yield pool
