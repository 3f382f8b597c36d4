"""How probable text is to a language model: every token, in both directions, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relmo.arrays import Array, IntArray
from relmo.errors import ConfigError, DataError
from relmo.formats.contents import Softmax
from relmo.model.output import Packed
from relmo.model.softmax import log_probabilities
from relmo.text.batch import Batch
from relmo.text.vocabulary import SPECIAL, Vocabulary

PREDICTIONS = 4096  # compared with all words of the vocabulary at a time


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
        """Return the log-probability of the whole sentence, forward and backward."""
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

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return asdict(self)


@dataclass(frozen=True)
class Scoring:
    """Turns batches into probabilities.

    Attributes:
        run: runs the biLM, as `Model.run` does.
        n_outputs: layers of the model.
        softmax: the output layer.
        vocabulary: its words.
    """

    run: Callable[..., Packed]
    n_outputs: int
    softmax: Softmax
    vocabulary: Vocabulary

    @torch.no_grad()
    def contexts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what predicts the next token, and the previous one: (N, P) each."""
        top = torch.eye(self.n_outputs)[-1:]  # (1, L+1)
        forward, backward = self.run(batch, mix=top).layers[0].cpu().chunk(2, dim=1)
        return forward, backward

    @torch.no_grad()
    def score(self, batch: Batch, *, fit: bool = False) -> Iterator[ScoredSentence]:
        """Score each sentence of a batch; see `Model.score`."""
        if batch.tokens is None:
            raise DataError("Scoring needs tokens, and found character ids. Give tokens.")
        forward, backward = self.contexts(batch)
        begin, end, unknown = (self.vocabulary.numbers[w] for w in SPECIAL)
        known = np.array([self.vocabulary.number(token) for token in batch.tokens])
        flat = known[batch.index]  # (N,)
        ends = np.cumsum(batch.packing.lengths)
        starts = ends - batch.packing.lengths
        flat[starts], flat[ends - 1] = begin, end
        inside = np.ones(len(flat), dtype=bool)
        inside[ends - 1] = False
        before = np.flatnonzero(inside)  # every place that another follows in its sentence
        to_end = self._log_probabilities(forward, before, flat[before + 1])
        to_begin = self._log_probabilities(backward, before + 1, flat[before])
        fits = None
        if fit:
            inside[starts] = False  # what is left are the tokens
            # Of p(w | before) p(w | after) / p(w) the logits are both contexts' with one bias.
            both, at = forward[:-2] + backward[2:], np.flatnonzero(inside)
            prior = torch.log_softmax(self.softmax.bias.float(), dim=0)[torch.from_numpy(flat[at])]
            fits = self._log_probabilities(both, at - 1, flat[at]) - prior.numpy()
        place = 0  # among the predictions, one more than tokens in each sentence
        for sentence, (start, stop) in enumerate(zip(starts + 1, ends - 1, strict=True)):
            n = stop - start
            own = slice(place, place + n + 1) if n else slice(0, 0)
            of_tokens = slice(place - sentence, place - sentence + n)
            place += n + 1
            yield ScoredSentence(
                tuple(batch.tokens[i] for i in batch.index[start:stop]),
                to_end[own],
                np.roll(to_begin[own], -1),  # the first was the sentence's beginning
                flat[start:stop] == unknown,
                None if fits is None else fits[of_tokens],
            )

    def _log_probabilities(self, x: Tensor, places: IntArray, targets: IntArray) -> Array:
        """Return (M,) log p(target) from x (N, P) at M places, some of them at a time."""
        weight, bias = self.softmax.weight, self.softmax.bias
        pairs = zip(
            torch.from_numpy(places).split(PREDICTIONS),
            torch.from_numpy(targets).split(PREDICTIONS),
            strict=True,
        )
        parts = [log_probabilities(x.index_select(0, at), to, weight, bias) for at, to in pairs]
        found: Array = torch.cat(parts).numpy()
        return found


def least_expected(scored: ScoredSentence, k: int) -> list[int]:
    """Places of the k tokens that fit least into their sentence, the worst first."""
    if scored.fit is None:
        raise ConfigError("The sentence was scored without `fit`: use score(sentences, fit=True).")
    return [int(place) for place in np.argsort(scored.fit, kind="stable")[:k]]


def summarize(scored: Iterable[ScoredSentence]) -> Perplexity:
    """Perplexity of sentences that are scored already."""
    sums, tokens, unknown = np.zeros(2), 0, 0
    for sentence in scored:
        sums += sentence.log_probability
        tokens += len(sentence.forward)
        unknown += int(sentence.unknown.sum())
    if not tokens:
        raise DataError("There is no token to measure. Give a text with at least one word.")
    forward, backward = (math.exp(min(mean, 700.0)) for mean in -sums / tokens)  # floats end there
    return Perplexity(forward, backward, (forward + backward) / 2, tokens, unknown)
