"""From sentences to batches and back: the one batcher of everything that runs a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from relmo.arrays import IntArray
from relmo.errors import DataError
from relmo.text.batch import Batch, build_batch, cut_into_pools, plan_batches
from relmo.text.characters import CharacterScheme
from relmo.text.tokenize import Tokenizer

T = TypeVar("T")
Sentence: TypeAlias = str | Sequence[str] | IntArray  # text, tokens, or character ids (tokens, C)
Tokens: TypeAlias = Sequence[str] | IntArray

BATCH_TOKENS = 8192  # in a batch, boundaries included


@dataclass(frozen=True)
class Batcher:
    """Turns sentences into batches.

    Attributes:
        tokenize: what strings go through.
        scheme: turns tokens into character and word ids.
    """

    tokenize: Tokenizer
    scheme: CharacterScheme

    def tokens(self, sentence: Sentence) -> Tokens:
        """Return the tokens of a sentence, or its character ids as they are."""
        if isinstance(sentence, str):
            return [token.text for token in self.tokenize(sentence)]
        if isinstance(sentence, np.ndarray) and sentence.dtype.kind in "iu":
            return sentence
        if isinstance(sentence, Sequence) and all(isinstance(token, str) for token in sentence):
            return sentence
        raise DataError(
            f"A sentence is a string, a list of strings or an array of character ids, not "
            f"{sentence!r:.80}. Decode bytes first; put a lone list of tokens into a list."
        )

    def batch(self, sentences: Iterable[Sentence]) -> Batch:
        """Build one batch of all sentences, in their order."""
        return build_batch([self.tokens(s) for s in sentences], self.scheme)  # type: ignore[arg-type]

    def batches(self, sentences: Iterable[Sentence], pool_tokens: int) -> Iterator[Batch]:
        """Build batches of sentences of like lengths; `Batch.numbers` tells which they are.

        Args:
            sentences: a stream of any length, of which one pool is looked at at a time.
            pool_tokens: how many tokens a pool has: more let like lengths meet.
        """
        first = 0
        for pool in cut_into_pools(map(self.tokens, sentences), len, pool_tokens):
            for plan in plan_batches([len(tokens) + 2 for tokens in pool], BATCH_TOKENS):
                chosen = [pool[i] for i in plan]
                numbers = [first + i for i in plan]
                yield build_batch(chosen, self.scheme, numbers)  # type: ignore[arg-type]
            first += len(pool)


def in_order(batches: Iterable[Batch], run: Callable[[Batch], Iterable[T]]) -> Iterator[T]:
    """Yield the results of each sentence in the order in which the sentences were given.

    Args:
        batches: as `Batcher.batches` builds them.
        run: gives one result per sentence of a batch.
    """
    waiting: dict[int, T] = {}
    following = 0
    for batch in batches:
        waiting |= zip(batch.numbers.tolist(), run(batch), strict=True)
        while following in waiting:
            yield waiting.pop(following)
            following += 1
