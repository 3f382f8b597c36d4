"""ELMo as living software. `relmo.load("dir").embed(["A sentence ."])` is most of it."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relmo import errors

if TYPE_CHECKING:
    from relmo.features.static import StaticVectors
    from relmo.inference.model import Model, load
    from relmo.model.bilm import BiLm
    from relmo.model.scalar_mix import ScalarMix
    from relmo.vectors.index import VectorIndex

__version__ = "0.1.0"
__all__ = ["BiLm", "Model", "ScalarMix", "StaticVectors", "VectorIndex", "errors", "load"]

# Loaded when first used: `import relmo` and `relmo --help` must not wait for torch.
_HOMES = {
    "load": "relmo.inference.model",
    "Model": "relmo.inference.model",
    "BiLm": "relmo.model.bilm",
    "ScalarMix": "relmo.model.scalar_mix",
    "StaticVectors": "relmo.features.static",
    "VectorIndex": "relmo.vectors.index",
}


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
