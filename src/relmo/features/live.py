"""Vectors that a model computes when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from relmo.arrays import Array
from relmo.errors import ConfigError
from relmo.features.layers import Features, Layers, Sentences, pad_arrays
from relmo.features.static import StaticVectors
from relmo.inference.model import Model
from relmo.inference.model_source import ModelLike, ModelSource


class LiveFeatures:
    """All layers of a model, as features; the biLM is frozen.

    Attributes:
        model: what computes them.
        name: for people.

    Example:
        >>> import relmo
        >>> from relmo.features import LiveFeatures
        >>> features = LiveFeatures(relmo.load("en"), "en")
        >>> features.batch([["A", "cat", "."], ["Yes"]]).values.shape
        torch.Size([3, 2, 3, 512])
    """

    def __init__(self, model: Model, name: str = "model") -> None:
        if not isinstance(model, Model):
            raise ConfigError(
                f"Expected a loaded model, found {model!r:.40}. Load it with relmo.load, or give "
                "its name or path to relmo.features.open_features."
            )
        self.model = model
        self.name = name

    @property
    def identity(self) -> str:
        """The fingerprint of the weights and, unless it is float32, the precision."""
        precision = self.model.precision
        return self.model.fingerprint + ("" if precision == "float32" else f"-{precision}")

    @property
    def n_layers(self) -> int:
        """K, that of the token encoder included."""
        return self.model.config.n_outputs

    @property
    def dim(self) -> int:
        """D, the length of a vector: both directions."""
        return self.model.config.output_dim

    @torch.no_grad()
    def batch(self, sentences: Sentences, *, boundaries: bool = False) -> Layers:
        """Compute the vectors of tokenised sentences; see `Features.batch`."""
        output = self.model.run(self.model.batch(sentences)).padded()
        layers = Layers(output.layers, output.mask)
        return layers if boundaries else layers.without_boundaries()


@dataclass(frozen=True)
class FunctionFeatures:
    """The vectors that a function gives, as features; those of boundaries are zeros.

    Attributes:
        name: for people.
        identity: must change whenever the vectors would.
        n_layers: K; of several layers, layer 0 must depend on the word alone.
        dim: D.
        embed: from tokenised sentences to one array (K, tokens, D) for each.

    Example:
        >>> import numpy as np
        >>> from relmo.features import FunctionFeatures
        >>> def embed(sentences):
        ...     return [np.array([[[len(token)] for token in s]], np.float32) for s in sentences]
        >>> features = FunctionFeatures("length", "length-1", 1, 1, embed)
        >>> features.batch([["a", "cat"]]).values.tolist()
        [[[[1.0], [3.0]]]]
    """

    name: str
    identity: str
    n_layers: int
    dim: int
    embed: Callable[[Sentences], Iterable[Array]]

    def batch(self, sentences: Sentences, *, boundaries: bool = False) -> Layers:
        """Call the function, and pad what it gives; see `Features.batch`."""
        return pad_arrays(self.embed(sentences), self.n_layers, self.dim, boundaries=boundaries)


def open_features(
    model: ModelLike | None,
    static: str | Path | StaticVectors | None = None,
    *,
    default: str | None = None,
) -> list[Features]:
    """Open a model, static vectors or both, side by side.

    Args:
        model: a name, a path or a loaded model.
        static: as `StaticVectors.load` takes it, or loaded vectors.
        default: the model to open where neither is given.

    Raises:
        ConfigError: There is neither, and no default.

    Example:
        >>> import numpy as np
        >>> import relmo
        >>> from relmo.features import open_features
        >>> static = relmo.StaticVectors(["cat", "dog"], np.eye(2, dtype=np.float32))
        >>> [(features.name, features.n_layers) for features in open_features("en", static)]
        [('en', 3), ('static', 1)]
    """
    if model is None and static is None:
        model = default
    found: list[Features] = []
    if isinstance(model, Model):
        found.append(LiveFeatures(model))
    elif model is not None:
        source = model if isinstance(model, ModelSource) else ModelSource(model)
        found.append(LiveFeatures(source.load(), Path(source.source).name))
    if static is not None:
        found.append(static if isinstance(static, StaticVectors) else StaticVectors.load(static))
    if not found:
        raise ConfigError(
            "There are no vectors to look at: give a model, static vectors, or both.",
            settings=["model", "static"],
        )
    return found
