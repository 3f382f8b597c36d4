"""What the training loop asks of whatever is trained, and of the data that it learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Metric:
    """A score by name, and in which direction it improves.

    Example:
        >>> from relmo.train import Metric
        >>> Metric("accuracy", higher_is_better=True).is_better(0.9, 0.8)
        True
    """

    name: str
    higher_is_better: bool

    def is_better(self, score: float, best: float) -> bool:
        """Whether `score` beats `best`; a tie does not."""
        return score > best if self.higher_is_better else score < best


@dataclass(frozen=True)
class Step:
    """The result of one update, over all ranks together.

    Attributes:
        loss: mean over the units of the batch.
        n_units: how many there were.
        gradient_norm: before clipping.
        extra: more columns for metrics.jsonl, which shows those of the last step of each row.

    Example:
        >>> from relmo.train import Step
        >>> Step(loss=0.5, n_units=32, gradient_norm=1.25, extra={"accuracy": 0.75}).n_units
        32
    """

    loss: float
    n_units: int
    gradient_norm: float
    extra: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """What is trained. Every rank calls all methods at the same time, but for `evaluate`.

    Attributes:
        unit: what `Step.n_units` counts, in the plural: "words", "sentences", "questions".
        decides: the score of `evaluate` that chooses the best checkpoint and stops early.

    Example:
        >>> import torch
        >>> from relmo.config import TrainConfig
        >>> from relmo.train import Examples, Metric, Step, train
        >>> class Mean:
        ...     unit, decides = "numbers", Metric("error", higher_is_better=False)
        ...
        ...     def __init__(self):
        ...         self.value = torch.zeros(1)
        ...
        ...     def learn(self, batch, rate):
        ...         gradient = self.value - sum(batch) / len(batch)
        ...         self.value -= rate * gradient
        ...         return Step(float(gradient.square()), len(batch), float(gradient.abs()))
        ...
        ...     def evaluate(self):
        ...         return {"error": abs(float(self.value) - 2)}
        ...
        ...     def state(self):
        ...         return {"value": self.value}
        ...
        ...     def load(self, state):
        ...         self.value.copy_(state["value"])
        >>> learner, data = Mean(), Examples([1.0, 3.0], list, batch_size=2, length=int)
        >>> outcome = train(learner, data, TrainConfig(learning_rate=0.5, epochs=20))
        >>> outcome.units, outcome.unit, outcome.best["error"] < 0.01
        (40, 'numbers', True)
    """

    @property
    def unit(self) -> str:  # noqa: D102
        ...

    @property
    def decides(self) -> Metric:  # noqa: D102
        ...

    def learn(self, batch: Any, rate: float, /) -> Step:
        """Make one update at a learning rate; return the same `Step` on every rank."""

    def evaluate(self) -> Mapping[str, float]:
        """Scores on held-out data, the deciding one among them; called on the first rank only."""

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on; ranks may gather what only they know."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore such a state."""


class TrainingData(Protocol):
    """Batches without end, in an order that a position can resume.

    `Examples` is one. An epoch here has one batch:

    Example:
        >>> class Numbers:
        ...     def batches(self, position):
        ...         epoch = position.get("epoch", 0)
        ...         while True:
        ...             epoch += 1
        ...             yield [1.0, 3.0], {"epoch": epoch}
        >>> next(Numbers().batches({"epoch": 4}))
        ([1.0, 3.0], {'epoch': 5})
    """

    def batches(self, position: dict[str, int]) -> Iterator[tuple[Any, dict[str, int]]]:
        """Batches from a position on ({} is the start), each with the position after it.

        A position is the same on every rank, and has "epoch", the number of finished epochs. The
        loop reads in another thread: use no random numbers of torch's default generator here.
        """
