"""Optimizers: PyTorch's for whole tensors, a row-sparse one for large ones; clipping, schedules.

A table may have a row for each of a million items, and a step gradients for a few thousand. A
`RowOptimizer` reads and writes those rows alone: a step costs the same for a table of any size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relmo.config import TrainConfig
from relmo.errors import CheckpointError, ConfigError

ADAM_BETAS = 0.9, 0.999
ADAM_EPS = 1e-8
ADAGRAD_START = 1.0  # what a sum of squares begins with
ADAGRAD_EPS = 1e-10  # PyTorch's own
BLOCK = 1 << 18  # numbers that are updated at a time: they stay in the caches
# What an optimizer's state may hold beside tensors, and which tensor stands for it in a checkpoint.
SCALARS: dict[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),
    "int": (int, torch.int64),
    "float": (float, torch.float64),
}


def build_optimizer(
    kind: str, parameters: Iterable[Tensor], learning_rate: float
) -> torch.optim.Optimizer:
    """PyTorch's optimizer of that kind ("adam" or "adagrad"), for whole tensors."""
    if kind == "adam":
        return torch.optim.Adam(parameters, learning_rate, ADAM_BETAS, ADAM_EPS, fused=True)
    return torch.optim.Adagrad(
        parameters, learning_rate, initial_accumulator_value=ADAGRAD_START, fused=True
    )


class RowOptimizer:
    """Adam or Adagrad for a tensor of which each step changes some rows.

    A row that has no gradient keeps its moments as they are. Adam's correction for moments that
    began with zeros goes by how often the row itself was updated: by the number of all steps, the
    first step of a rare row would be √10 times too long (0.1 g / √(0.001 g²) instead of g / |g|).
    """

    def __init__(self, kind: str, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self._change = _change_by_adam if kind == "adam" else _change_by_adagrad
        self._state = {"square": _zeros(tensor, tensor.shape)}  # Adagrad's start is added in use
        if kind == "adam":
            self._state["mean"] = _zeros(tensor, tensor.shape)
            self._state["count"] = _zeros(tensor, tensor.shape[:1])

    @torch.no_grad()
    def update(self, rows: Tensor | None, gradient: Tensor, learning_rate: float) -> None:
        """Change the given rows, distinct ones, by their gradient (R, ...); None is all of them."""
        n = max(1, BLOCK // max(1, gradient[:1].numel()))
        everything = [self.tensor, *self._state.values()]
        for start in range(0, len(gradient), n):
            block = slice(start, start + n)
            if rows is None:
                self._change([t[block] for t in everything], gradient[block], learning_rate)
                continue
            places = rows[block].to(self.tensor.device)
            values = [t.index_select(0, places) for t in everything]
            self._change(values, gradient[block], learning_rate)
            for tensor, value in zip(everything, values, strict=True):
                tensor.index_copy_(0, places, value)

    def state(self) -> dict[str, Tensor]:
        """What `load` restores; not a copy."""
        return dict(self._state)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Resume from what `state` gave."""
        check_shapes(state, self._state)
        for name, tensor in self._state.items():
            tensor.copy_(state[name])


def _zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """NumPy's zeros take no memory before something is written there; PyTorch's do."""
    return torch.from_numpy(np.zeros(shape, like[:0].cpu().detach().numpy().dtype)).to(like.device)


def _change_by_adam(values: Sequence[Tensor], gradient: Tensor, learning_rate: float) -> None:
    tensor, square, mean, count = values
    count += 1
    exponent = count.double().view(-1, *[1] * (tensor.dim() - 1))
    mean.lerp_(gradient, 1 - ADAM_BETAS[0])
    square.mul_(ADAM_BETAS[1]).addcmul_(gradient, gradient, value=1 - ADAM_BETAS[1])
    length = (learning_rate / (1 - ADAM_BETAS[0] ** exponent)).to(tensor.dtype)
    unbiased = (1 - ADAM_BETAS[1] ** exponent).sqrt_().to(tensor.dtype)
    tensor.sub_(mean.div(square.sqrt().div_(unbiased).add_(ADAM_EPS)).mul_(length))


def _change_by_adagrad(values: Sequence[Tensor], gradient: Tensor, learning_rate: float) -> None:
    tensor, square = values
    square.addcmul_(gradient, gradient)
    scale = square.add(ADAGRAD_START).sqrt_().add_(ADAGRAD_EPS)
    tensor.addcdiv_(gradient, scale, value=-learning_rate)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a parameter group with a "rate_factor" gets that multiple of it."""
    for group in optimizer.param_groups:
        own = rate * group.get("rate_factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


@dataclass(frozen=True)
class Clipping:
    """Limits of gradients: of the norm of all together, of every single value, both or neither.

    Attributes:
        norm: of all gradients together; no limit when None.
        value: of every single number; no limit when None.

    Example:
        >>> import torch
        >>> from relmo.train.optim import Clipping
        >>> gradient = torch.tensor([3.0, 4.0])
        >>> Clipping(norm=1.0).apply([gradient])  # the norm before
        5.0
        >>> [round(number, 3) for number in gradient.tolist()]
        [0.6, 0.8]
    """

    norm: float | None = None
    value: float | None = None

    @classmethod
    def of(cls, config: TrainConfig) -> Clipping:
        """As configured."""
        return cls(config.clip_norm, config.clip_value)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor]) -> float:
        """Clip gradients in place, first by value, then by norm; return their norm before.

        A norm that is not finite is returned and nothing changed: the caller is to stop.
        """
        if self.value is None:
            return clip_norm(gradients, self.norm)
        norm = clip_norm(gradients, None)
        if math.isfinite(norm):
            torch._foreach_clamp_min_(list(gradients), -self.value)
            torch._foreach_clamp_max_(list(gradients), self.value)
            clip_norm(gradients, self.norm)
        return norm


@torch.no_grad()
def clip_norm(gradients: Sequence[Tensor], max_norm: float | None) -> float:
    """Scale gradients in place to `max_norm` where all together exceed it; return the norm before.

    A norm that is not finite is returned and nothing scaled: the caller is to stop.
    """
    norm = float(nn.utils.get_total_norm(gradients))
    if max_norm is not None and max_norm < norm < math.inf:
        torch._foreach_mul_(list(gradients), max_norm / norm)
    return norm


def learning_rate_at(
    config: TrainConfig, step: int, progress: float, reduction: float = 1.0
) -> float:
    """The learning rate of a step, counted from 0, when `progress` (0 to 1) of training is over.

    It rises evenly over the warm-up; the linear and the cosine schedule end at 0. `reduction` is
    what reduce-on-plateau has made of it so far.
    """
    rate = config.learning_rate * reduction
    if step < config.warmup:
        rate *= (step + 1) / config.warmup
    done = min(max(progress, 0.0), 1.0)
    if config.decay == "linear":
        rate *= 1 - done
    elif config.decay == "cosine":
        rate *= (1 + math.cos(math.pi * done)) / 2
    return rate


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of any PyTorch optimizer that keeps tensors and numbers; not a copy.

    Names are `POSITION.NAME`, by the parameter's position; numbers have their type in the name,
    as `POSITION.NAME:int`, and None is an empty tensor under `POSITION.NAME:none`.
    """
    state: dict[str, Tensor] = {}
    for position, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            kind, tensor = _as_tensor(value)
            if tensor is None:
                raise ConfigError(
                    f"{type(optimizer).__name__} keeps {name!r} as {type(value).__name__}, but "
                    "only tensors and numbers can be saved. Train with another optimizer."
                )
            state[f"{position}.{name}{kind}"] = tensor
    return state


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Resume from what `optimizer_state` gave, with parameters of the same shapes and order."""
    positions = {name.partition(".")[0] for name in state}  # other parameters never learned
    expected = _after_a_step(optimizer)
    none = {name.removesuffix(":none") for name in (*state, *expected) if name.endswith(":none")}
    found, expected = (
        {
            name: tensor
            for name, tensor in tensors.items()
            if name.partition(".")[0] in positions and name.removesuffix(":none") not in none
        }
        for tensors in (state, expected)
    )
    check_shapes(found, expected)
    loaded: dict[int, dict[str, Any]] = {}
    for key, tensor in state.items():
        position, _, name = key.partition(".")
        name, _, kind = name.partition(":")
        value = None if kind == "none" else tensor.item() if kind else tensor.clone()
        loaded.setdefault(int(position), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": loaded, "param_groups": groups})


def _as_tensor(value: Any) -> tuple[str, Tensor | None]:
    """The mark of a value's type, and the value as a tensor if there is one for it."""
    if isinstance(value, Tensor):
        return "", value
    if value is None:
        return ":none", torch.empty(0)
    for kind, (type_, dtype) in SCALARS.items():
        if type(value) is type_:
            return f":{kind}", torch.tensor(value, dtype=dtype)
    return "", None


def _after_a_step(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of a copy after one step without gradients: names and shapes to expect."""
    tried = copy.deepcopy(optimizer)
    parameters = [p for group in tried.param_groups for p in group["params"]]
    for sparse in (False, True):  # some take only gradients of the one kind or the other
        for p in parameters:
            p.grad = torch.zeros_like(p).to_sparse() if sparse else torch.zeros_like(p)
        try:
            tried.step()
            break
        except RuntimeError:
            if sparse:
                raise
    return optimizer_state(tried)


def check_shapes(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str = "optimizer's state"
) -> None:
    """Raise `CheckpointError` unless the same tensors of the same shapes are there."""
    for name in sorted(found.keys() | expected.keys()):
        shapes = [list(t[name].shape) if name in t else "nothing" for t in (found, expected)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"The {what} does not fit: {name} is {shapes[0]}, expected {shapes[1]}. Resume "
                "with the settings and the data that the checkpoint was made with."
            )
