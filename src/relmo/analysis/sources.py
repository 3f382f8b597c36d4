"""What can be analysed: the layers of a model, static vectors to compare with, and both at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from relmo.analysis.probes import Embed
from relmo.arrays import Array
from relmo.errors import ConfigError
from relmo.features.static import StaticVectors
from relmo.inference.model import Model, load

Tokens = list[tuple[str, ...]]


@dataclass(frozen=True)
class Source:
    """Kinds of vectors.

    Attributes:
        names: of the K kinds.
        embed: gives K arrays (tokens, D_k) for each sentence.
        layers: numbers of the kinds that are a model's layers.
    """

    names: tuple[str, ...]
    embed: Embed
    layers: range = range(0)


def open_source(
    model: str | None,
    static: str | None,
    *,
    options: Path | None = None,
    contexts: bool = False,
) -> Source:
    """What a model and a file of static vectors give, of which one may be left out.

    Args:
        model: as `load` takes it.
        static: as `StaticVectors.load` takes it.
        options: of HDF5 weights.
        contexts: take also what surrounds each token: of a model, what both directions hold before
            they read it; of static vectors, their mean over the sentence.

    Raises:
        ConfigError: There is neither.
    """
    of_words = None if static is None else static_source(StaticVectors.load(static), contexts)
    if model is not None:
        of_layers = model_source(load(model, options=options), contexts)
        return of_layers if of_words is None else joint_source(of_layers, of_words)
    if of_words is None:
        raise ConfigError("Say what to look at: -m MODEL, --static VECTORS, or both.")
    return of_words


def model_source(embedder: Model, contexts: bool = False) -> Source:
    """Each layer of a model, their average and, on demand, the top layer's view of the context."""

    def embed(sentences: Tokens) -> list[Array]:
        layers = embedder.embed(sentences, layers="all")  # (L+1, tokens, 2P) each
        return [np.concatenate([x, x.mean(axis=0, keepdims=True)]) for x in layers]

    @torch.inference_mode()
    def embed_contexts(sentences: Tokens) -> list[Array]:
        top = embedder.bilm(embedder.batch(sentences)).layers[-1].cpu()  # (B, T, 2P)
        found = []
        for x, kinds in zip(top, embed(sentences), strict=True):
            n = kinds.shape[1]
            ahead, back = x[: n + 2].chunk(2, dim=1)  # (n + 2, P) each, boundaries included
            context = torch.cat([ahead[:-2], back[2:]], dim=1).numpy()
            found.append(np.concatenate([kinds, context[None]]))
        return found

    layers = range(embedder.config.n_outputs)
    names = (*(f"layer {layer}" for layer in layers), "average", "context")
    if contexts:
        return Source(names, embed_contexts, layers)
    return Source(names[:-1], embed, layers)


def static_source(vectors: StaticVectors, contexts: bool = False) -> Source:
    """The vector of each word and, on demand, the mean of those of its sentence."""

    def embed(sentences: Tokens) -> list[list[Array]]:
        words = vectors.embed(sentences)  # (tokens, D) each
        if not contexts:
            return [[x] for x in words]
        return [[x, np.broadcast_to(x.mean(axis=0) if len(x) else 0, x.shape)] for x in words]

    return Source(("static", "static context")[: 1 + contexts], embed)


def joint_source(of_layers: Source, of_words: Source) -> Source:
    """Both, and the static vector of a word behind the average of its layers."""

    def embed(sentences: Tokens) -> list[list[Array]]:
        found = []
        for kinds in zip(of_layers.embed(sentences), of_words.embed(sentences), strict=True):
            layers, words = map(list, kinds)
            average = layers[of_layers.names.index("average")]
            found.append([*layers, *words, np.concatenate([average, words[0]], axis=1)])
        return found

    names = (*of_layers.names, *of_words.names, "average + static")
    return Source(names, embed, of_layers.layers)
