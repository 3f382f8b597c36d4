"""Words that fit in the place of another, by what comes before it and by what comes after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from relmo.errors import ConfigError
from relmo.inference.model import Model
from relmo.text.marks import MarkedSentence
from relmo.text.vocabulary import SPECIAL


@dataclass(frozen=True)
class Substitute:
    """A word with its natural logarithms of probability.

    Attributes:
        word: of the vocabulary.
        forward: given the words before it.
        backward: given the words after it.
        share: of the product of both, among all words.
    """

    word: str
    forward: float
    backward: float
    share: float

    @property
    def score(self) -> float:
        """Log of the product of both probabilities."""
        return self.forward + self.backward


@torch.no_grad()
def find_substitutes(model: Model, sentence: MarkedSentence, k: int) -> list[Substitute]:
    """Find the k words that fit best in the place of the marked one, which may be among them."""
    if k < 1:
        raise ConfigError(f"k is {k}; expected 1 or more.")
    scoring = model.scoring()
    before, after = scoring.contexts(model.batch([sentence.tokens]))
    weight, bias = scoring.softmax.weight.float(), scoring.softmax.bias.float()
    forward, backward = (
        torch.log_softmax(weight @ context + bias, dim=0)  # (V,)
        for context in (before[sentence.place], after[sentence.place + 2])  # <S> is number 0
    )
    both = forward + backward
    special = torch.tensor([scoring.vocabulary.numbers[word] for word in SPECIAL])
    both[special] = -torch.inf
    shares = torch.softmax(both.double(), dim=0)
    best = both.topk(min(k, len(both) - len(special))).indices.tolist()
    words = scoring.vocabulary.words
    return [
        Substitute(words[i], forward[i].item(), backward[i].item(), shares[i].item()) for i in best
    ]
