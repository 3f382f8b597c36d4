"""Sentences side by side: which go together, and the order in which a network reads them.

Tokens of a batch stand in one flat row, sentence after sentence, so that nothing is padded. A
`Packing` says which of them are read at each step, by either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, cast

import numpy as np

from relmo.arrays import IntArray
from relmo.errors import ConfigError, DataError
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
        numbers: (B,) which of the sentences that were given each one is.
        tokens: the U distinct tokens; None where sentences were given as character ids.
    """

    ids: TokenIds
    index: IntArray
    packing: Packing
    numbers: IntArray
    tokens: tuple[str, ...] | None


def build_batch(
    sentences: Sequence[Sequence[str]] | Sequence[IntArray],
    scheme: CharacterScheme,
    numbers: Sequence[int] | None = None,
) -> Batch:
    """Build a batch; here, and nowhere else, sentences get their two boundaries.

    Args:
        sentences: tokens, or character ids (tokens, C), of each; an empty one consists of its
            boundaries.
        scheme: turns tokens into ids.
        numbers: which of the caller's sentences these are; counted from 0 when None.
    """
    packing = Packing([len(sentence) + 2 for sentence in sentences])
    order = np.arange(len(sentences)) if numbers is None else np.array(numbers, dtype=np.int64)
    if any(isinstance(sentence, np.ndarray) for sentence in sentences):
        ids, index = _distinct_ids(cast(Sequence[IntArray], sentences), scheme)
        return Batch(ids, index, packing, order, None)
    bounded = chain.from_iterable((scheme.begin, *s, scheme.end) for s in sentences)
    places: dict[str, int] = {}
    index = np.array([places.setdefault(token, len(places)) for token in bounded], dtype=np.int64)
    tokens = tuple(places)
    return Batch(scheme.encode(tokens), index, packing, order, tokens)


def _distinct_ids(
    sentences: Sequence[IntArray], scheme: CharacterScheme
) -> tuple[TokenIds, IntArray]:
    """Find the distinct rows of character ids, boundaries included, and each token's number."""
    boundaries = scheme.encode([scheme.begin, scheme.end]).characters
    if boundaries is None or scheme.encode([]).words is not None:
        raise ConfigError("This model reads words, not character ids alone: give tokens.")
    begin, end = boundaries[:1], boundaries[1:]
    for sentence in sentences:
        if not isinstance(sentence, np.ndarray) or sentence.ndim != 2:
            raise DataError("Give all sentences of a batch as character ids (tokens, C), or none.")
        if sentence.shape[1] != begin.shape[1] or sentence.dtype.kind not in "iu":
            raise DataError(
                f"Character ids are {sentence.dtype} {list(sentence.shape)}; this model reads "
                f"integers (tokens, {begin.shape[1]})."
            )
        if len(sentence) and not 0 <= sentence.min() <= sentence.max() < scheme.n_characters:
            raise DataError(
                f"Character ids go from {sentence.min()} to {sentence.max()}; this model knows "
                f"those from 0 to {scheme.n_characters - 1}."
            )
    flat = np.concatenate([part for s in sentences for part in (begin, s, end)]).astype(np.int64)
    distinct, index = np.unique(flat, axis=0, return_inverse=True)
    return TokenIds(distinct, None), index.reshape(-1)


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sentences of like lengths, at most `max_tokens` tokens (or one sentence) per batch."""
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
