"""Optimizers: PyTorch's for whole tensors, one of our own for rows of large ones.

A softmax has a row for each word, and a step has gradients for a few thousand of them. A
`RowOptimizer` reads and writes those alone, so that a step costs the same for any vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from relmo.config import TrainConfig
from relmo.errors import CheckpointError

ADAM_BETAS = 0.9, 0.999
ADAM_EPS = 1e-8
ADAGRAD_START = 1.0  # what a sum of squares begins with
ADAGRAD_EPS = 1e-10  # PyTorch's own
BLOCK = 1 << 18  # numbers that are updated at a time: they stay in the caches


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
    first step of a rare word would be √10 times too long (0.1 g / √(0.001 g²) instead of g / |g|).
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
        """What `load` goes on from; not a copy."""
        return dict(self._state)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        _check_shapes(state, self._state)
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


@torch.no_grad()
def clip_norm(gradients: Sequence[Tensor], max_norm: float | None) -> float:
    """Scale gradients, in place, to `max_norm` where all together exceed it; their norm before.

    A norm that is not finite is returned and nothing scaled: the caller is to stop.
    """
    norm = float(nn.utils.get_total_norm(gradients))
    if max_norm is not None and max_norm < norm < math.inf:
        torch._foreach_mul_(list(gradients), max_norm / norm)
    return norm


def learning_rate_at(config: TrainConfig, step: int, progress: float) -> float:
    """The learning rate of a step, counted from 0, when `progress` (0 to 1) of training is over.

    It rises evenly over the warm-up; both decays end at 0, where the last steps gain most.
    """
    rate = config.learning_rate
    if step < config.warmup:
        rate *= (step + 1) / config.warmup
    done = min(max(progress, 0.0), 1.0)
    if config.decay == "linear":
        rate *= 1 - done
    elif config.decay == "cosine":
        rate *= (1 + math.cos(math.pi * done)) / 2
    return rate


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What PyTorch's optimizer remembers, as `POSITION.NAME` of each parameter; not a copy."""
    return {
        f"{position}.{name}": tensor
        for position, values in optimizer.state_dict()["state"].items()
        for name, tensor in values.items()
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Go on from what `optimizer_state` gave, with parameters of the same shapes and order."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    adam, scalar = isinstance(optimizer, torch.optim.Adam), torch.empty(())
    names = ("step", "exp_avg", "exp_avg_sq") if adam else ("step", "sum")
    used = [i for i in range(len(parameters)) if f"{i}.step" in state]  # the others never learned
    expected = {f"{i}.{n}": scalar if n == "step" else parameters[i] for i in used for n in names}
    _check_shapes(state, expected)
    loaded = {i: {n: state[f"{i}.{n}"].clone() for n in names} for i in used}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": loaded, "param_groups": groups})


def _check_shapes(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for name in sorted(found.keys() | expected.keys()):
        shapes = [list(t[name].shape) if name in t else "nothing" for t in (found, expected)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"The optimizer's state does not fit: {name} is {shapes[0]}, expected {shapes[1]}. "
                "Continue with the settings and the vocabulary that the checkpoint was made with."
            )
