"""Which layers a caller wants, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from relmo.arrays import Array
from relmo.errors import ConfigError
from relmo.model.scalar_mix import ScalarMix

LayerSpec: TypeAlias = Literal["all", "top", "average", "lstm"] | int | Sequence[int] | ScalarMix


@dataclass(frozen=True)
class LayerSelection:
    """Which vectors a caller wants of each token.

    Attributes:
        n_layers: how many vectors per token are computed, K.
        single: whether one vector per token is wanted, so that arrays have no axis of layers.
        matrix: (K, L+1) weighted sums of the layers, as `Model.run` takes them; None is all layers.
        mix: a mix with layer norm, which needs all layers of a whole sentence.
    """

    n_layers: int
    single: bool
    matrix: Tensor | None
    mix: ScalarMix | None = None

    def finish(self, vectors: Tensor) -> Array:
        """Turn the vectors of a sentence (K, tokens, 2P) into an array that stands on its own."""
        if self.mix is not None:
            vectors = vectors.to(self.mix.weights.device)
            mask = torch.ones(vectors.shape[1], dtype=torch.bool, device=vectors.device)
            return self.mix.combine(vectors, mask).cpu().numpy()
        return (vectors[0] if self.single else vectors).numpy().copy()


ALL_KINDS = "all, average, lstm, top, a number from 0 to {top} (-1 is the top), or several (0,2)"
SINGLE_KINDS = "average, lstm, top, or a number from 0 to {top} (-1 is the top)"


def select_layers(
    layers: LayerSpec, n_outputs: int, *, expected: str = ALL_KINDS
) -> LayerSelection:
    """Check what a caller asks for, before anything is computed.

    Args:
        layers: "all", "top", "average" (the mean of all layers), "lstm" (the mean of layers 1 to
            L), a number, a list of numbers, or a mix.
        n_outputs: layers of the model, the token encoder's included: L + 1.
        expected: what the error offers, where it is not everything.
    """
    identity = torch.eye(n_outputs)
    if isinstance(layers, ScalarMix):
        if len(layers.weights) != n_outputs:
            raise ConfigError(
                f"The mix is of {len(layers.weights)} layers, the model has {n_outputs} "
                f"(the token encoder's included): build ScalarMix({n_outputs})."
            )
        if layers.layer_norm:
            return LayerSelection(n_outputs, True, None, layers)
        return LayerSelection(1, True, layers.coefficients().detach().cpu()[None])
    if layers == "all":
        return LayerSelection(n_outputs, False, None)
    if layers == "average":
        return LayerSelection(1, True, torch.full((1, n_outputs), 1 / n_outputs))
    if layers == "lstm":
        weights = torch.full((1, n_outputs), 1 / (n_outputs - 1))
        weights[0, 0] = 0.0
        return LayerSelection(1, True, weights)
    single = layers == "top" or _is_number(layers)
    numbers: Any = [-1] if layers == "top" else [layers] if single else layers
    if not (
        isinstance(numbers, Sequence)
        and len(numbers) > 0
        and all(_is_number(n) and -n_outputs <= n < n_outputs for n in numbers)
    ):
        raise ConfigError(
            f"layers is {layers!r}; choose {expected.format(top=n_outputs - 1)}.",
            settings=["layers"],
        )
    return LayerSelection(len(numbers), single, identity[list(numbers)])


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def select_one_layer(layers: LayerSpec, n_outputs: int) -> LayerSelection:
    """Check a choice that must give one vector per token."""
    selection = select_layers(layers, n_outputs, expected=SINGLE_KINDS)
    if not selection.single:
        raise ConfigError(
            f"layers is {layers!r}; one vector per token is needed: choose "
            f"{SINGLE_KINDS.format(top=n_outputs - 1)}.",
            settings=["layers"],
        )
    return selection
