"""ELMo as living software. `relmo.load("dir").embed(["A sentence ."])` is most of it."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relmo import errors

if TYPE_CHECKING:
    from relmo.analysis.probes import probe_pos
    from relmo.analysis.senses import SenseOptions, find_senses
    from relmo.analysis.word_in_context import probe_wic
    from relmo.cache import clear_cache, list_cache
    from relmo.features.static import StaticVectors
    from relmo.inference.convert import convert
    from relmo.inference.describe import describe_model, describe_system, list_models
    from relmo.inference.model import Model, load
    from relmo.inference.model_source import ModelSource
    from relmo.inference.substitutes import substitutes
    from relmo.inference.text_scores import perplexity, score_file
    from relmo.model.bilm import BiLm
    from relmo.model.scalar_mix import ScalarMix
    from relmo.pretraining import pretrain
    from relmo.text.reading import TextOptions
    from relmo.vectors.bulk import embed_file
    from relmo.vectors.corpus_index import (
        IndexOptions,
        build_index,
        measure_recall,
        search_corpus,
        search_index,
    )
    from relmo.vectors.index import VectorIndex
    from relmo.vectors.neighbours import neighbours

__version__ = "0.1.0"
__all__ = [
    "BiLm",
    "IndexOptions",
    "Model",
    "ModelSource",
    "ScalarMix",
    "SenseOptions",
    "StaticVectors",
    "TextOptions",
    "VectorIndex",
    "build_index",
    "clear_cache",
    "convert",
    "describe_model",
    "describe_system",
    "embed_file",
    "errors",
    "find_senses",
    "list_cache",
    "list_models",
    "load",
    "measure_recall",
    "neighbours",
    "perplexity",
    "pretrain",
    "probe_pos",
    "probe_wic",
    "score_file",
    "search_corpus",
    "search_index",
    "substitutes",
]

# Loaded when first used: `import relmo` and the command's help must not wait for torch.
_HOMES = {
    "BiLm": "relmo.model.bilm",
    "IndexOptions": "relmo.vectors.corpus_index",
    "Model": "relmo.inference.model",
    "ModelSource": "relmo.inference.model_source",
    "ScalarMix": "relmo.model.scalar_mix",
    "SenseOptions": "relmo.analysis.senses",
    "StaticVectors": "relmo.features.static",
    "TextOptions": "relmo.text.reading",
    "VectorIndex": "relmo.vectors.index",
    "build_index": "relmo.vectors.corpus_index",
    "clear_cache": "relmo.cache",
    "convert": "relmo.inference.convert",
    "describe_model": "relmo.inference.describe",
    "describe_system": "relmo.inference.describe",
    "embed_file": "relmo.vectors.bulk",
    "find_senses": "relmo.analysis.senses",
    "list_cache": "relmo.cache",
    "list_models": "relmo.inference.describe",
    "load": "relmo.inference.model",
    "measure_recall": "relmo.vectors.corpus_index",
    "neighbours": "relmo.vectors.neighbours",
    "perplexity": "relmo.inference.text_scores",
    "pretrain": "relmo.pretraining",
    "probe_pos": "relmo.analysis.probes",
    "probe_wic": "relmo.analysis.word_in_context",
    "score_file": "relmo.inference.text_scores",
    "search_corpus": "relmo.vectors.corpus_index",
    "search_index": "relmo.vectors.corpus_index",
    "substitutes": "relmo.inference.substitutes",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "Embedder":
        warnings.warn(
            "relmo.Embedder is now called relmo.Model; the old name will be removed in 0.4.",
            DeprecationWarning,
            stacklevel=2,
        )
        name = "Model"
    if name not in _HOMES:
        raise AttributeError(f"module 'relmo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
