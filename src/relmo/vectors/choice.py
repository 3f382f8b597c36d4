"""Which layers a caller wants, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from relmo.arrays import Array
from relmo.errors import ConfigError
from relmo.model.scalar_mix import ScalarMix

Layers = Literal["all", "top", "average"] | int | Sequence[int] | ScalarMix


@dataclass(frozen=True)
class Choice:
    """Which vectors a caller wants of each token."""

    n_layers: int
    one: bool  # an array without the axis of layers
    matrix: Tensor | None  # (K, L+1) as `BiLm.contextualize` takes it
    mix: ScalarMix | None = None  # what is left to do once a sentence is complete

    def finish(self, vectors: Tensor) -> Array:
        """(K, tokens, 2P) as an array that stands on its own."""
        if self.mix is not None:
            mask = torch.ones(vectors.shape[1], dtype=torch.bool)
            return self.mix.combine(vectors, mask).numpy()
        return (vectors[0] if self.one else vectors).numpy().copy()


def choose(layers: Layers, n_outputs: int) -> Choice:
    """Check what a caller asks for, before anything is computed."""
    identity = torch.eye(n_outputs)
    if isinstance(layers, ScalarMix):
        if len(layers.weights) != n_outputs:
            raise ConfigError(
                f"The mix is of {len(layers.weights)} layers, the model has {n_outputs} "
                f"(the token encoder's included): build ScalarMix({n_outputs})."
            )
        if layers.layer_norm:  # needs the whole sentence, so all layers of it
            return Choice(n_outputs, True, None, layers)
        return Choice(1, True, layers.coefficients().detach().cpu()[None])
    if layers == "all":
        return Choice(n_outputs, False, None)
    if layers == "average":
        return Choice(1, True, torch.full((1, n_outputs), 1 / n_outputs))
    one = layers == "top" or isinstance(layers, int)
    numbers: Any = [-1] if layers == "top" else [layers] if one else layers
    if not (
        isinstance(numbers, Sequence)
        and len(numbers) > 0
        and all(isinstance(n, int) and -n_outputs <= n < n_outputs for n in numbers)
    ):
        raise ConfigError(
            f"layers is {layers!r}; choose all, top, average, a number from 0 to {n_outputs - 1}, "
            "a list of numbers, or a ScalarMix."
        )
    return Choice(len(numbers), one, identity[list(numbers)])
