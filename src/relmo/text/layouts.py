"""A prepared corpus as batches of a language model, in one of two layouts.

`Segments`, here: each sentence (or run of sentences) for itself, from a zero state, those of like
lengths together: the way text is embedded. `Streams`, in streams.py: texts side by side, a few
tokens at a time, with the state carried over, as bilm-tf trains. A sentence of n words gives n + 1
predictions in either direction:

    forward    reads  <S> a b      predicts  a b </S>
    backward   reads  </S> b a     predicts  b a <S>

What comes when depends on the seed and the position alone, not on how many processes share the
work: every one of them plans all batches, and builds its own part of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from relmo.arrays import IntArray
from relmo.config import DataConfig
from relmo.text.batch import Packing, plan_batches
from relmo.text.blocks import Blocks
from relmo.text.characters import CharacterScheme, TokenIds
from relmo.text.noise import CaseNoise, mix_seed
from relmo.text.vocabulary import SPECIAL, Vocabulary

Position = dict[str, int]

POOL_BLOCKS = 64  # blocks that are shuffled sentence by sentence, and sorted into batches


@dataclass(frozen=True)
class LmBatch:
    """What the two directions read and predict; a place is one of N packed ones.

    Attributes:
        ids: what the token encoder reads for the U distinct tokens.
        index: (2, N) which of them is read at each place; direction 0 is forward.
        targets: (2, N) the vocabulary's number of what is predicted there; -1 for nothing.
        packing: rows and steps.
        seed: for what is drawn while learning from it; the same for all parts of a batch.
    """

    ids: TokenIds
    index: IntArray
    targets: IntArray
    packing: Packing
    seed: int


class Part(NamedTuple):
    """The share of each batch that one of several processes works on."""

    rank: int = 0
    size: int = 1


class Span(NamedTuple):
    """Part of a sentence: predictions `start` to `end`, counted with the boundaries."""

    shard: int
    sentence: int
    start: int
    end: int

    @property
    def n_tokens(self) -> int:
        """Predictions in one direction."""
        return self.end - self.start


class BatchBuilder:
    """What the rows of a batch read and predict, each distinct token with a number."""

    def __init__(self, scheme: CharacterScheme) -> None:
        self._scheme = scheme
        self._numbers = {scheme.begin: 0, scheme.end: 1}
        self._flat: tuple[list[IntArray], ...] = (
            [],
            [],
            [],
            [],
        )  # read, predicted; forward, backward

    def add(self, *columns: Sequence[str]) -> None:
        """Go on with what is read forward and backward, and what is predicted so."""
        new, numbers = self._numbers.setdefault, self._numbers
        for part, tokens in zip(self._flat, columns, strict=True):
            part.append(np.array([new(t, len(numbers)) for t in tokens], dtype=np.int64))

    def build(self, lengths: Sequence[int], vocabulary: Vocabulary, seed: int) -> LmBatch:
        """The batch of rows that have so many tokens."""
        packing = Packing(lengths)
        tokens = list(self._numbers)
        known = np.array([vocabulary.number(word) for word in (*SPECIAL[:2], *tokens[2:])])
        flat = np.stack([np.concatenate(part) for part in self._flat])[:, packing.forward]
        return LmBatch(self._scheme.encode(tokens), flat[:2], known[flat[2:]], packing, seed)


@dataclass
class Layout:
    """What both layouts have: the text, and what is read of a sentence.

    Attributes:
        blocks: the text.
        config: sizes of batches, and how much noise.
        scheme: of the tokens' characters.
        vocabulary: what is predicted.
        seed: of the order, of samples and of noise.
        part: which of the processes this is.
    """

    blocks: Blocks
    config: DataConfig
    scheme: CharacterScheme
    vocabulary: Vocabulary
    _: KW_ONLY
    seed: int = 0
    part: Part = Part()  # noqa: RUF009 - a tuple

    def __post_init__(self) -> None:
        self._noise = CaseNoise(self.config.case_noise, self.seed, self.scheme)

    def _bounded(
        self, words: list[str], epoch: int | None, *place: int
    ) -> tuple[list[str], list[str]]:
        """A sentence with its boundaries: as it is read in an epoch of training, and as it is."""
        read = words if epoch is None else self._noise.apply(words, epoch, *place)
        begin, end = self.scheme.begin, self.scheme.end
        return [begin, *read, end], [begin, *words, end]


class Segments(Layout):
    """Batches of sentences that know nothing of each other."""

    @property
    def n_tokens(self) -> int:
        """Predictions of an epoch, in one direction."""
        return self.blocks.n_tokens

    def batches(self, position: Position) -> Iterator[tuple[LmBatch, Position]]:
        """Epoch after epoch, for ever, from a position on; each with the position after it."""
        start = [position.get(key, 0) for key in ("epoch", "pool", "batch")]
        for epoch in count(start[0]):
            order = np.random.default_rng([self.seed, 2, epoch]).permutation(len(self.blocks.table))
            pools = [order[i : i + POOL_BLOCKS] for i in range(0, len(order), POOL_BLOCKS)]
            for pool in range(start[1], len(pools)):
                plan = self._plan(pools[pool], [self.seed, 3, epoch, pool])
                for batch in range(start[2], len(plan)):
                    after = {"epoch": epoch, "pool": pool, "batch": batch + 1}
                    if batch + 1 == len(plan):
                        last = pool + 1 == len(pools)
                        after = {"epoch": epoch + last, "pool": 0 if last else pool + 1, "batch": 0}
                    seed = mix_seed(self.seed, epoch, pool, batch)
                    yield self._build(plan[batch], seed, epoch), after
                start[2] = 0
            start[1] = 0

    def validation_batches(self) -> Iterator[LmBatch]:
        """Everything as it was written, in order: for validation."""
        n_blocks = len(self.blocks.table)
        for first in range(0, n_blocks, POOL_BLOCKS):
            pool = np.arange(first, min(n_blocks, first + POOL_BLOCKS))
            for batch in self._plan(pool, None):
                yield self._build(batch, 0, None)

    def _plan(self, pool: IntArray, seed: list[int] | None) -> list[list[list[Span]]]:
        """Batches of segments; a segment is a list of spans of sentences."""
        segments = [s for block in pool.tolist() for s in self._cut(block)]
        if seed is not None:
            np.random.default_rng(seed).shuffle(segments)
        lengths = [sum(span.n_tokens for span in segment) for segment in segments]
        plan = [[segments[i] for i in b] for b in plan_batches(lengths, self.config.batch_tokens)]
        if seed is not None:
            np.random.default_rng([*seed, 1]).shuffle(plan)
        return plan

    def _cut(self, block: int) -> Iterator[list[Span]]:
        """Sentences, joined or cut to `segment_tokens`."""
        limit, joined = self.config.segment_tokens, list[Span]()
        shard, first, *_ = self.blocks.table[block].tolist()
        room = limit
        for place, n_tokens in enumerate(self.blocks.lengths(block).tolist()):
            for start in range(0, n_tokens, limit):
                span = Span(shard, first + place, start, min(start + limit, n_tokens))
                if joined and (not self.config.joined or span.n_tokens > room):
                    yield joined
                    joined, room = [], limit
                joined.append(span)
                room -= span.n_tokens
        if joined:
            yield joined

    def _build(self, segments: list[list[Span]], seed: int, epoch: int | None) -> LmBatch:
        own = segments[self.part.rank :: self.part.size]
        builder = BatchBuilder(self.scheme)
        for segment in own or segments[:1]:
            pieces = [self._tokens(span, epoch) for span in segment]
            for (read, tokens), (read_last, last) in zip(pieces, reversed(pieces), strict=True):
                builder.add(read[:-1], read_last[:0:-1], tokens[1:], last[-2::-1])
        lengths = [sum(span.n_tokens for span in segment) for segment in own or segments[:1]]
        batch = builder.build(lengths, self.vocabulary, seed)
        if own:
            return batch
        # Fewer segments than processes: read something, predict nothing.
        return replace(batch, targets=np.full_like(batch.targets, -1))

    def _tokens(self, span: Span, epoch: int | None) -> tuple[list[str], list[str]]:
        words = self.blocks.corpus.shards[span.shard].sentence(span.sentence)
        read, tokens = self._bounded(words, epoch, span.shard, span.sentence)
        return read[span.start : span.end + 1], tokens[span.start : span.end + 1]
