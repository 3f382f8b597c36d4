"""The kinds of vectors that an analysis compares: views of the layers of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relmo.features.layers import Features, Layers


@dataclass(frozen=True)
class Kinds:
    """The kinds of vectors of features that stand side by side.

    Of a model: each layer, and "average", the mean of all of them. Of static vectors: "static". Of
    one model beside static vectors also "average + static", one behind the other. With several
    models, or several static vectors, their names are part of the kinds' names.

    Attributes:
        features: one or more.
        contexts: also what surrounds each token. Of a model ("context"), what both directions of
            the top layer hold before they read it; of static vectors ("static context"), their
            mean over the sentence.
    """

    features: Sequence[Features]
    contexts: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the kinds, in the order of `views`."""
        names: list[str] = []
        for features in self.features:
            label = self._label(features)
            if features.n_layers > 1:
                prefix = f"{label} " if label else ""
                names += [f"{prefix}layer {layer}" for layer in range(features.n_layers)]
                names += [f"{prefix}average"] + [f"{prefix}context"] * self.contexts
            else:
                names += [label] + [f"{label} context"] * self.contexts
        return (*names, *(f"average + {self._label(f)}" for f in self._beside()))

    @property
    def mixes(self) -> dict[str, tuple[int, ...]]:
        """For each model, the name of a learned mix and the numbers of the kinds it mixes."""
        found, first = {}, 0
        for features in self.features:
            if features.n_layers > 1:
                name = f"{self._label(features)} mix".strip()
                found[name] = tuple(range(first, first + features.n_layers))
            first += (1 if features.n_layers == 1 else features.n_layers + 1) + self.contexts
        return found

    def views(self, values: Sequence[Tensor], contexts: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return each kind's vectors (..., D).

        Args:
            values: (K, ..., D) of each of the features, for the same tokens.
            contexts: (..., D) of each of the features, where they are asked for.
        """
        found: list[Tensor] = []
        averages: list[Tensor] = []
        for number, layers in enumerate(values):
            found += list(layers)
            if len(layers) > 1:
                averages.append(layers.mean(dim=0))
                found.append(averages[-1])
            if self.contexts:
                found.append(contexts[number])
        beside = self._beside()
        for features, layers in zip(self.features, values, strict=True):
            if features in beside:
                found.append(torch.cat([averages[0], layers[0]], dim=-1))
        return found

    def _beside(self) -> list[Features]:
        """The static vectors that stand behind the average of the one model."""
        static = [f for f in self.features if f.n_layers == 1]
        return static if len(self.features) == len(static) + 1 else []

    def _label(self, features: Features) -> str:
        """What tells features from others of their sort: nothing where there are none."""
        same = [f for f in self.features if (f.n_layers > 1) == (features.n_layers > 1)]
        if len(same) > 1:
            return features.name
        return "" if features.n_layers > 1 else "static"


def contexts_of(layers: Layers) -> Tensor:
    """Return what surrounds each token, (B, T - 2, D), from a batch with boundaries."""
    if len(layers.values) > 1:
        return layers.context()
    words = layers.without_boundaries()
    n_words = words.mask.sum(dim=1).clamp(min=1)  # (B,)
    means = words.values[0].sum(dim=1) / n_words[:, None]  # (B, D)
    return means[:, None] * words.mask[..., None]
