"""ELMo as living software. `relmo.load("dir").embed(["A sentence ."])` is most of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from relmo import errors

if TYPE_CHECKING:
    from relmo.model.bilm import BiLm
    from relmo.model.scalar_mix import ScalarMix
    from relmo.vectors.embedder import Embedder, load
    from relmo.vectors.index import VectorIndex
    from relmo.vectors.static import StaticVectors

__version__ = "0.1.0"
__all__ = ["BiLm", "Embedder", "ScalarMix", "StaticVectors", "VectorIndex", "errors", "load"]

# Loaded when first used: `import relmo` and `relmo --help` must not wait for torch.
_HOMES = {
    "load": "relmo.vectors.embedder",
    "Embedder": "relmo.vectors.embedder",
    "BiLm": "relmo.model.bilm",
    "ScalarMix": "relmo.model.scalar_mix",
    "StaticVectors": "relmo.vectors.static",
    "VectorIndex": "relmo.vectors.index",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'relmo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
