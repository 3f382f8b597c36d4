"""Texts side by side, a few tokens at a time: the layout in which bilm-tf trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from relmo.arrays import IntArray
from relmo.errors import ConfigError, DataError
from relmo.text.layouts import BatchBuilder, Layout, LmBatch, Position
from relmo.text.noise import mix_seed

Columns = tuple[str, str, str, str]  # read forward and backward, predicted so


class Streams(Layout):
    """Texts side by side, `n_steps` tokens at a time, to be read with the state carried over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        blocks, config, part = self.blocks, self.config, self.part
        if config.n_streams % part.size:
            raise ConfigError(
                f"{config.n_streams} streams cannot be shared by {part.size} processes: set "
                "data.n_streams to a multiple of that."
            )
        n_own = config.n_streams // part.size
        self._own = range(part.rank * n_own, (part.rank + 1) * n_own)
        self._n_windows = blocks.n_tokens // config.n_streams // config.n_steps
        if not self._n_windows:
            raise DataError(
                f"A text of {blocks.n_tokens:,} tokens is too short for {config.n_streams} streams "
                f"of {config.n_steps} steps. Give more text, or set data.n_streams=4.",
                settings=["settings"],
            )

    @property
    def n_tokens(self) -> int:
        """Predictions of an epoch, in one direction."""
        return self._n_windows * self.config.n_streams * self.config.n_steps

    def batches(self, position: Position) -> Iterator[tuple[LmBatch, Position]]:
        """Epoch after epoch, for ever, from a position on; each with the position after it."""
        first = position.get("window", 0)
        for epoch in count(position.get("epoch", 0)):
            order = np.random.default_rng([self.seed, 2, epoch]).permutation(len(self.blocks.table))
            readers = self._readers(order, first, epoch)
            for window in range(first, self._n_windows):
                last = window + 1 == self._n_windows
                after = {"epoch": epoch + last, "window": 0 if last else window + 1}
                yield self._build(readers, mix_seed(self.seed, epoch, window)), after
            first = 0

    def validation_batches(self) -> Iterator[LmBatch]:
        """All as it was written but what is left over at the ends, in order: for validation."""
        readers = self._readers(np.arange(len(self.blocks.table)), 0, None)
        for _ in range(self._n_windows):
            yield self._build(readers, 0)

    def _readers(self, order: IntArray, window: int, epoch: int | None) -> list[Iterator[Columns]]:
        """Each stream from that window on."""
        length = self.blocks.n_tokens // self.config.n_streams
        first = window * self.config.n_steps
        return [self._pairs(order, stream * length + first, epoch) for stream in self._own]

    def _pairs(self, order: IntArray, start: int, epoch: int | None) -> Iterator[Columns]:
        """What is read and predicted from a token of the shuffled text on.

        Sentences come in the same order both ways; the backward direction reads each from its end.
        """
        ends = np.cumsum(self.blocks.table[order, 3])
        place = int(np.searchsorted(ends, start, side="right"))
        skipped = start - (int(ends[place - 1]) if place else 0)
        for block in np.concatenate([order[place:], order[:place]]).tolist():
            for number, words in enumerate(self.blocks.sentences(block)):
                read, tokens = self._bounded(words, epoch, block, number)
                pairs = zip(read[:-1], read[:0:-1], tokens[1:], tokens[-2::-1], strict=True)
                yield from islice(pairs, min(skipped, len(words) + 1), None)
                skipped = max(0, skipped - len(words) - 1)

    def _build(self, readers: Sequence[Iterator[Columns]], seed: int) -> LmBatch:
        n_steps = self.config.n_steps
        builder = BatchBuilder(self.scheme)
        for reader in readers:
            builder.add(*zip(*islice(reader, n_steps), strict=True))
        return builder.build([n_steps] * len(readers), self.vocabulary, seed)
