"""Any module with a loss and any PyTorch optimizer, as the training loop sees them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from relmo.errors import CheckpointError, ConfigError, TrainingError
from relmo.train.ema import MovingAverage
from relmo.train.learner import Metric, Step
from relmo.train.optim import (
    Clipping,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)
from relmo.train.world import World

LossFunction = Callable[[Any, Any], tuple[Tensor, int] | tuple[Tensor, int, Mapping[str, float]]]
NO_CLIPPING = Clipping()
ALONE = World()


class ModuleLearner:
    """Trains a module; see `relmo.train.learner.Learner`.

    Optimizer, clipping and averaging are arguments here: `TrainConfig.optimizer`, `clip_norm`,
    `clip_value` and `ema` are those of pre-training. The loop sets the learning rate; parameter
    groups may have a "rate_factor" that multiplies it. Submodules stay in the mode, training or
    evaluation, in which they were given.

    Args:
        module: what is trained, on the device of `world`.
        loss: from the module and a batch to the mean loss, the number of units that it is the mean
            of and, if wanted, extra columns for metrics.jsonl. Of several processes, each gives the
            loss of its part of the batch, and the module is wrapped: call it, and no other method.
        evaluate: from the module, in evaluation mode and without gradients, to scores.
        optimizer: of the module's parameters; any that makes a step without a closure.
        decides: the score that chooses the best checkpoint.
        unit: what is counted, in the plural.
        clip: limits of gradients.
        ema: decay of an exponential moving average of the weights, with which to evaluate.
        world: the processes that train together.

    Example:
        >>> import torch
        >>> from relmo.config import TrainConfig
        >>> from relmo.train import Examples, Metric, ModuleLearner, train
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Linear(1, 1)
        >>> learner = ModuleLearner(
        ...     net,
        ...     loss=lambda module, x: ((module(x) - 2 * x).square().mean(), len(x)),
        ...     evaluate=lambda module: {"error": float((module(torch.ones(1, 1)) - 2).abs())},
        ...     optimizer=torch.optim.SGD(net.parameters()),
        ...     decides=Metric("error", higher_is_better=False),
        ... )
        >>> data = Examples([[n / 9] for n in range(10)], torch.tensor, batch_size=5)
        >>> outcome = train(learner, data, TrainConfig(learning_rate=0.5, epochs=60))
        >>> outcome.reason, outcome.best["error"] < 0.1
        ('epochs', True)
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: LossFunction,
        evaluate: Callable[[Any], Mapping[str, float]],
        optimizer: torch.optim.Optimizer,
        decides: Metric,
        unit: str = "examples",
        clip: Clipping = NO_CLIPPING,
        ema: float | None = None,
        world: World = ALONE,
    ) -> None:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ConfigError(
                f"{type(optimizer).__name__} evaluates the loss several times per step, which the "
                "training loop does not offer. Train with another optimizer, such as AdamW."
            )
        self.module, self.unit, self.decides = module, unit, decides
        self._loss, self._evaluate, self._optimizer = loss, evaluate, optimizer
        self._clip, self._world = clip, world
        self._wrapped = world.wrap(module)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._ema = None if ema is None else MovingAverage(trained, ema)

    def learn(self, batch: Any, rate: float) -> Step:
        """Make one update from this process's part of a batch."""
        self._optimizer.zero_grad()
        loss, n_units, *extra = _checked_loss(self._loss(self._wrapped, batch))
        totals = torch.tensor([n_units, n_units * float(loss.detach())], dtype=torch.float64)
        self._world.sum(totals)
        n_all = int(totals[0])
        if self._world.size > 1:
            # The wrapped module averages gradients over processes: weight each by its share.
            loss = loss * (n_units * self._world.size / n_all)
        loss.backward()
        norm = self._clip.apply(self._gradients())
        if math.isfinite(norm):
            set_learning_rate(self._optimizer, rate)
            self._optimizer.step()
            if self._ema is not None:
                self._ema.update()
        mean = float(totals[1]) / n_all if self._world.size > 1 else float(loss.detach())
        return Step(mean, n_all, norm, *extra)

    def evaluate(self) -> Mapping[str, float]:
        """Scores of the module, with averaged weights if there are any."""
        with self.evaluating() as module:
            scores = self._evaluate(module)
        if not isinstance(scores, Mapping):
            raise TrainingError(
                f"`evaluate` returned {_kind(scores)}, expected scores by name. "
                f'Return a dict such as {{"{self.decides.name}": 0.5}}.'
            )
        return scores

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The module to predict with: evaluation mode, no gradients, averaged weights if any."""
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad():
                if self._ema is None:
                    yield self.module
                else:
                    with self._ema.applied():
                        yield self.module
        finally:
            for part, mode in modes:
                part.training = mode

    def state(self) -> dict[str, Tensor]:
        """Weights and buffers, the optimizer's state, and averaged weights if there are any."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "module": self.module.state_dict(),
            "optimizer": optimizer_state(self._optimizer),
            "ema": {} if self._ema is None else self._ema.state(),
        }
        return {f"{part}.{name}": t for part, found in parts.items() for name, t in found.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore such a state."""
        try:
            self.module.load_state_dict(part_of(state, "module"))
        except RuntimeError as error:
            raise CheckpointError(
                f"The checkpoint does not fit the module: {error}. Build the module as it was."
            ) from None
        load_optimizer_state(self._optimizer, part_of(state, "optimizer"))
        if self._ema is not None:
            self._ema.load(part_of(state, "ema"))

    def _gradients(self) -> list[Tensor]:
        """Where gradients are: of sparse ones, the values."""
        for parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
        found = [p.grad for p in self._parameters if p.grad is not None]
        return [grad.values() if grad.is_sparse else grad for grad in found]


def _checked_loss(found: Any) -> tuple[Any, ...]:
    """What a loss function returned, if it is what the learner expects."""
    if (
        isinstance(found, tuple)
        and len(found) in (2, 3)
        and isinstance(found[0], Tensor)
        and found[0].numel() == 1
        and isinstance(found[-1], Mapping) == (len(found) == 3)
    ):
        return found
    parts = f"({', '.join(map(_kind, found))})" if isinstance(found, tuple) else _kind(found)
    raise TrainingError(
        f"`loss` returned {parts}, expected the mean loss (a tensor of one number), the number "
        "of units that it is the mean of and, if wanted, a dict of extra columns. "
        "Return a tuple such as (loss, len(batch))."
    )


def _kind(value: Any) -> str:
    """The type of a value, for messages; of a tensor, its shape too."""
    shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
    return f"{type(value).__name__}{shape}"


def part_of(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of one part of a learner's state, by their own names."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
