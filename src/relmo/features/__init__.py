"""Vectors of tokens, computed when they are asked for or kept in a store on disk."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relmo.features.layers import Features, Layers
    from relmo.features.live import FunctionFeatures, LiveFeatures, open_features
    from relmo.features.static import StaticVectors
    from relmo.features.store import FeatureStore, StoredFeatures

__all__ = [
    "FeatureStore",
    "Features",
    "FunctionFeatures",
    "Layers",
    "LiveFeatures",
    "StaticVectors",
    "StoredFeatures",
    "open_features",
]

# Loaded when first used: listing what is stored needs no torch.
_HOMES = {
    "FeatureStore": "store",
    "Features": "layers",
    "FunctionFeatures": "live",
    "Layers": "layers",
    "LiveFeatures": "live",
    "StaticVectors": "static",
    "StoredFeatures": "store",
    "open_features": "live",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'relmo.features' has no attribute {name!r}")
    return getattr(import_module(f"relmo.features.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
