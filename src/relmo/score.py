"""How probable text is to a language model: every token, both ways, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError, FormatError
from relmo.formats import ModelContents
from relmo.model.softmax import log_probabilities
from relmo.text.batch import Packing, build_batch, cut_into_pools, plan_batches
from relmo.text.tokenize import build_tokenizer
from relmo.text.vocabulary import SPECIAL

Sentence = str | Sequence[str]  # text to be tokenised, or tokens

BATCH_TOKENS = 4096  # read side by side, and compared with all words at a time
POOL_TOKENS = 16 * BATCH_TOKENS  # of a stream, looked at together so that like lengths meet


@dataclass(frozen=True)
class ScoredSentence:
    """Log-probabilities (natural logarithms) of n tokens; a sentence of none has none at all.

    Attributes:
        tokens: the n tokens.
        forward: (n+1,) of each token given those before it, then of the sentence's end.
        backward: (n+1,) of each token given those after it, then of the sentence's beginning.
        unknown: (n,) True for tokens outside the vocabulary: they are scored as `<UNK>`.
        fit: (n,) log p(token | both sides) - log p(token), where it was asked for.
    """

    tokens: tuple[str, ...]
    forward: Array
    backward: Array
    unknown: NDArray[np.bool_]
    fit: Array | None = None

    @property
    def log_probability(self) -> tuple[float, float]:
        """Of the whole sentence, forward and backward."""
        return float(self.forward.sum(dtype=float)), float(self.backward.sum(dtype=float))


@dataclass(frozen=True)
class Perplexity:
    """Perplexities of a text.

    Attributes:
        forward: exp of the mean of -log p(token or end), left to right.
        backward: exp of the mean of -log p(token or beginning), right to left.
        average: the mean of these two, as the paper reports it.
        tokens: predictions in each direction: a sentence of n tokens has n + 1.
        unknown: tokens outside the vocabulary.
    """

    forward: float
    backward: float
    average: float
    tokens: int
    unknown: int


class Scorer:
    """A language model with its softmax, that tells how probable sentences are."""

    def __init__(self, contents: ModelContents, *, tokenizer: str | None = None) -> None:
        if contents.softmax is None or contents.vocabulary is None:
            missing = "softmax" if contents.softmax is None else "vocabulary"
            raise FormatError(
                f"This model ({contents.origin}) has no {missing}, and without one it cannot tell "
                "how probable a word is; published files do not hold it. Train one on text of "
                "your own, relmo pretrain TEXT --init MODEL -o RUN, and take RUN/model."
            )
        self.tokenizer = tokenizer or contents.config.tokenizer
        self.vocabulary = contents.vocabulary
        self._tokenize = build_tokenizer(self.tokenizer)
        self._bilm = contents.build_bilm()
        self._scheme = contents.build_scheme()
        self.softmax = contents.softmax
        self._top = torch.eye(contents.config.n_outputs)[-1:]  # (1, L+1)
        self._begin, self._end, self._unknown = (self.vocabulary.numbers[w] for w in SPECIAL)

    def score(
        self, sentences: Iterable[Sentence], *, fit: bool = False
    ) -> Iterator[ScoredSentence]:
        """Scored sentences in order, of a stream by pools; `fit` takes half as long again."""
        if isinstance(sentences, str):
            raise DataError("Expected sentences, found one string. Put it into a list.")
        return self._stream(map(self._tokens, sentences), fit)

    @torch.inference_mode()
    def contexts(self, sentences: Sequence[Sequence[str]]) -> tuple[Packing, Tensor, Tensor]:
        """What predicts the next token, and the one before: (N, P) each, boundaries included."""
        batch = build_batch(sentences, self._scheme)
        x = self._bilm.encoder(batch.ids)
        layers, _ = self._bilm.contextualize(
            x, torch.from_numpy(batch.index), batch.packing, mix=self._top
        )
        ahead, back = layers[0].chunk(2, dim=1)
        return batch.packing, ahead, back

    def _stream(self, sentences: Iterable[tuple[str, ...]], fit: bool) -> Iterator[ScoredSentence]:
        none = np.empty(0, np.float32)
        empty = ScoredSentence((), none, none, none.astype(bool), none if fit else None)
        for pool in cut_into_pools(sentences, len, POOL_TOKENS):
            results = [empty] * len(pool)
            full = [i for i, sentence in enumerate(pool) if sentence]
            for batch in plan_batches([len(pool[i]) + 2 for i in full], BATCH_TOKENS):
                numbers = [full[i] for i in batch]
                scored = self._score([pool[i] for i in numbers], fit)
                for i, result in zip(numbers, scored, strict=True):
                    results[i] = result
            yield from results

    def _tokens(self, sentence: Sentence) -> tuple[str, ...]:
        if isinstance(sentence, str):
            return tuple(token.text for token in self._tokenize(sentence))
        if isinstance(sentence, Sequence) and all(isinstance(token, str) for token in sentence):
            return tuple(sentence)
        raise DataError(
            f"A sentence is a string or a list of strings, not {sentence!r:.80}. "
            "Decode bytes first; put a lone list of tokens into a list."
        )

    @torch.inference_mode()
    def _score(self, sentences: Sequence[tuple[str, ...]], fit: bool) -> Iterator[ScoredSentence]:
        packing, ahead, back = self.contexts(sentences)
        words = [
            [self._begin, *map(self.vocabulary.number, sentence), self._end]
            for sentence in sentences
        ]
        flat = torch.tensor([number for row in words for number in row])  # (N,)
        lengths = torch.from_numpy(packing.lengths)
        ends = lengths.cumsum(0) - 1
        inside = torch.ones(len(flat), dtype=torch.bool)
        inside[ends] = False
        before = inside.nonzero()[:, 0]  # every place that another follows in its sentence
        forward = self._log_probabilities(ahead, before, flat[before + 1])
        backward = self._log_probabilities(back, before + 1, flat[before])
        sizes = [len(sentence) + 1 for sentence in sentences]
        fits: Sequence[Tensor | None] = [None] * len(sentences)
        if fit:
            inside[ends - lengths + 1] = False  # what is left are the tokens
            # Of p(w | before) p(w | after) / p(w) the logits are both contexts' with one bias.
            both, at = ahead[:-2] + back[2:], inside.nonzero()[:, 0]
            prior = torch.log_softmax(self.softmax.bias.float(), dim=0)[flat[at]]
            fits = (self._log_probabilities(both, at - 1, flat[at]) - prior).split(
                [n - 1 for n in sizes]
            )
        ways = forward.split(sizes), backward.split(sizes)
        parts = zip(sentences, words, *ways, fits, strict=True)
        return (
            ScoredSentence(
                tokens,
                to_end.numpy(),
                to_begin.roll(-1).numpy(),  # the first was the sentence's beginning
                np.array(numbers[1:-1]) == self._unknown,
                None if fitting is None else fitting.numpy(),
            )
            for tokens, numbers, to_end, to_begin, fitting in parts
        )

    def _log_probabilities(self, x: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        """(M,) log p(target) from x (N, P) at M places, a batch of them at a time."""
        weight, bias = self.softmax.weight, self.softmax.bias
        pairs = zip(places.split(BATCH_TOKENS), targets.split(BATCH_TOKENS), strict=True)
        return torch.cat(
            [log_probabilities(x.index_select(0, at), to, weight, bias) for at, to in pairs]
        )


def least_expected(scored: ScoredSentence, k: int) -> list[int]:
    """Places of the k tokens that fit least into their sentence, the worst first."""
    if scored.fit is None:
        raise ConfigError("The sentence was scored without `fit`: score(sentences, fit=True).")
    return [int(place) for place in np.argsort(scored.fit, kind="stable")[:k]]


def perplexity(scorer: Scorer, sentences: Iterable[Sentence]) -> Perplexity:
    """Perplexity of sentences, of which those without a token are left out."""
    return summarize(scorer.score(sentences))


def summarize(scored: Iterable[ScoredSentence]) -> Perplexity:
    """Perplexity of sentences that are scored already."""
    sums, tokens, unknown = np.zeros(2), 0, 0
    for sentence in scored:
        sums += sentence.log_probability
        tokens += len(sentence.forward)
        unknown += int(sentence.unknown.sum())
    if not tokens:
        raise DataError("There is no token to measure. Give a text with one sentence a line.")
    forward, backward = (math.exp(min(mean, 700.0)) for mean in -sums / tokens)  # floats end there
    return Perplexity(forward, backward, (forward + backward) / 2, tokens, unknown)
