"""What can be probed: the layers of a model, or static vectors to compare with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relmo.analysis.probes import Embed
from relmo.vectors.embedder import load
from relmo.vectors.static import StaticVectors


def model_layers(model: str, options: Path | None = None) -> tuple[list[str], Embed]:
    """Each layer of a model, and their average."""
    embedder = load(model, options=options)

    def embed(sentences: list[tuple[str, ...]]) -> list[NDArray[np.float32]]:
        layers = embedder.embed(sentences, layers="all")  # (L+1, tokens, 2P) each
        return [np.concatenate([x, x.mean(axis=0, keepdims=True)]) for x in layers]

    names = [f"layer {layer}" for layer in range(embedder.config.n_outputs)]
    return [*names, "average"], embed


def static_layer(path: str) -> tuple[list[str], Embed]:
    """The one kind of vector that there is."""
    vectors = StaticVectors.load(path)

    def embed(sentences: list[tuple[str, ...]]) -> list[NDArray[np.float32]]:
        return [found[None] for found in vectors.embed(sentences)]

    return ["static"], embed
