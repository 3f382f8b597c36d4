"""Blocks of a corpus: runs of consecutive sentences that stay together in shuffling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from relmo.arrays import IntArray
from relmo.errors import DataError
from relmo.text.shards import Corpus

BLOCK_TOKENS = 4096  # fewer in a short text, so that blocks can be held out for validation


class Blocks:
    """Runs of consecutive sentences of a corpus, of about `BLOCK_TOKENS` tokens at most."""

    def __init__(self, corpus: Corpus, table: IntArray) -> None:
        self.corpus = corpus
        self.table = table  # (n, 4): shard, first sentence, end, predictions per direction
        self.n_tokens = int(table[:, 3].sum())

    @classmethod
    def of(cls, corpus: Corpus) -> Blocks:
        """The blocks of a whole corpus."""
        parts = [np.empty((0, 4), np.int64)]
        n_tokens = sum(int(shard.ends[-1]) for shard in corpus.shards if len(shard.ends))
        block_tokens = min(BLOCK_TOKENS, max(64, n_tokens // 100))
        for number, shard in enumerate(corpus.shards):
            # After k sentences: ends[k - 1] words and k boundaries.
            words = np.append(0, shard.ends).astype(np.int64)
            after = words + np.arange(len(words))
            marks = np.arange(0, after[-1] + block_tokens, block_tokens)
            cuts = np.unique(np.searchsorted(after, marks).clip(max=shard.n_sentences))
            numbers = np.full(len(cuts) - 1, number)
            parts.append(np.stack([numbers, cuts[:-1], cuts[1:], np.diff(after[cuts])], axis=1))
        return cls(corpus, np.concatenate(parts))

    def hold_out(self, share: float, max_tokens: int, seed: int) -> tuple[Blocks, Blocks]:
        """Hold out about `share` of the tokens, in blocks from all over the corpus.

        Returns:
            The remaining blocks, and those held out.
        """
        held_out = self.some(min(int(share * self.n_tokens), max_tokens), seed)
        if share <= 0 or len(held_out.table) == len(self.table):
            raise DataError(
                f"A text of {self.n_tokens:,} tokens is too short to hold out a share of {share:g} "
                "for validation. Give a validation text, or more text.",
                settings=["valid"],
            )
        places = np.isin(self.table[:, :2] @ [1 << 32, 1], held_out.table[:, :2] @ [1 << 32, 1])
        return Blocks(self.corpus, self.table[~places]), held_out

    def some(self, max_tokens: int, seed: int) -> Blocks:
        """Blocks from all over the text, of about `max_tokens` tokens, or all blocks."""
        order = np.random.default_rng([seed, 1]).permutation(len(self.table))
        n = int(np.searchsorted(np.cumsum(self.table[order, 3]), max_tokens)) + 1
        return Blocks(self.corpus, self.table[np.sort(order[:n])])

    def sentences(self, block: int) -> Iterator[list[str]]:
        """The tokens of each sentence of a block."""
        shard, first, end, _ = self.table[block]
        for i in range(first, end):
            yield self.corpus.shards[shard].sentence(i)

    def lengths(self, block: int) -> IntArray:
        """Number of predictions per direction, for each sentence of a block."""
        shard, first, end, _ = self.table[block]
        before = self.corpus.shards[shard].ends[first - 1] if first else 0
        ends: IntArray = self.corpus.shards[shard].ends[first:end]
        return np.diff(ends, prepend=before) + 1
