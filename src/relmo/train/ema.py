"""The exponential moving average of weights: often better on held-out data than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from relmo.errors import ConfigError
from relmo.train.optim import check_shapes


class MovingAverage:
    """Averages of weights, updated after every step.

    The decay of update n is min(decay, (1 + n) / (10 + n)), so that the random weights of the
    start are soon forgotten.

    Args:
        weights: what is averaged, by name; changed in place by whoever trains them.
        decay: the share of the old average in the new one, such as 0.999.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"The decay of an average is {decay}: give one from 0 to below 1.")
        self._names = list(weights)
        self._weights = [tensor.detach() for tensor in weights.values()]
        self._averages = [tensor.clone() for tensor in self._weights]
        self._decay, self._n_updates = decay, 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of a step into the average."""
        n = self._n_updates
        decay = min(self._decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(self._averages, self._weights, 1 - decay)
        self._n_updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages in the place of the weights inside the block."""
        before = [tensor.clone() for tensor in self._weights]
        self._copy(self._averages)
        try:
            yield
        finally:
            self._copy(before)

    def state(self) -> dict[str, Tensor]:
        """The averages by name, and the number of updates; not copies."""
        averages = dict(zip(self._names, self._averages, strict=True))
        return {**averages, "n_updates": torch.tensor(self._n_updates)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Resume from what `state` gave."""
        check_shapes(state, self.state(), "average of weights")
        for name, average in zip(self._names, self._averages, strict=True):
            average.copy_(state[name])
        self._n_updates = int(state["n_updates"])

    @torch.no_grad()
    def _copy(self, tensors: list[Tensor]) -> None:
        for weight, tensor in zip(self._weights, tensors, strict=True):
            weight.copy_(tensor)
