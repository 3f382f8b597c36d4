"""Words that fit in the place of another, by what comes before it and by what comes after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from relmo.errors import ConfigError
from relmo.inference.model import Model
from relmo.inference.model_source import ModelLike, open_model
from relmo.text.marks import MarkedSentence, parse_marked
from relmo.text.vocabulary import SPECIAL


@dataclass(frozen=True)
class Substitute:
    """A word with its log-probabilities (natural logarithms).

    Attributes:
        word: a word of the vocabulary.
        forward: log-probability given the words before it.
        backward: log-probability given the words after it.
        share: exp(score), normalised over the vocabulary.
    """

    word: str
    forward: float
    backward: float
    share: float

    @property
    def score(self) -> float:
        """Sum of both log-probabilities."""
        return self.forward + self.backward

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return {**asdict(self), "score": self.score}


@dataclass(frozen=True)
class Substitutes:
    """Words that fit in the place of the marked one.

    Attributes:
        tokens: the tokens of the sentence.
        place: the place of the marked token among them, from 0.
        substitutes: the words, the best first.
    """

    tokens: tuple[str, ...]
    place: int
    substitutes: tuple[Substitute, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        words = [substitute.as_dict() for substitute in self.substitutes]
        return {"tokens": list(self.tokens), "place": self.place, "substitutes": words}


def substitutes(sentence: str, model: ModelLike = "en", *, k: int = 10) -> Substitutes:
    """Find words that fit in place of the marked one, which may be among them.

    The model does not see the marked word.

    Args:
        sentence: a sentence with one word in square brackets.
        model: a name, a path or a loaded model, with a softmax.
        k: number of words.

    Raises:
        DataError: There is not exactly one token in brackets.
        FormatError: The model has no softmax.

    Example:
        >>> import relmo
        >>> found = relmo.substitutes("They walked along the [road] .", k=3)
        >>> found.tokens[found.place], len(found.substitutes)
        ('road', 3)
    """
    loaded = open_model(model)
    marked = parse_marked(sentence, loaded.tokenize)
    return Substitutes(marked.tokens, marked.place, tuple(find_substitutes(loaded, marked, k)))


@torch.no_grad()
def find_substitutes(model: Model, sentence: MarkedSentence, k: int) -> list[Substitute]:
    """Find the k words that fit best in the place of the marked one, which may be among them."""
    if k < 1:
        raise ConfigError(f"k is {k}; expected 1 or more.", settings=["k"])
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
