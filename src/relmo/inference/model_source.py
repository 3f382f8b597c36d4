"""Which model a function is to use: a name, a path, a loaded model, or how to load one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from relmo.formats import ModelContents, read_model
from relmo.inference.model import Model, load


@dataclass(frozen=True)
class ModelSource:
    """A model that is loaded when it is needed, with these arguments of `relmo.load`.

    Every function that takes a model takes this, a name or path, or a loaded `Model`.

    Attributes:
        source: a directory, zip archive or HDF5 weights, or the name of a model.
        options: the options.json of HDF5 weights, if it is not beside them.
        tokenizer: the tokenizer for strings; the model's own when None.
        precision: "float32" or "int8".
        device: where to compute, as PyTorch names it.

    Example:
        >>> import relmo
        >>> source = relmo.ModelSource("en", tokenizer="whitespace")
        >>> source.load().tokenizer
        'whitespace'
    """

    source: str | Path
    options: str | Path | None = None
    tokenizer: str | None = None
    precision: str = "float32"
    device: str = "cpu"

    def load(self) -> Model:
        """Load the model."""
        return load(
            self.source,
            options=self.options,
            device=self.device,
            precision=self.precision,
            tokenizer=self.tokenizer,
        )


ModelLike: TypeAlias = str | Path | Model | ModelSource


def open_model(model: ModelLike, *, tokenizer: str | None = None) -> Model:
    """Return the model, loaded if it is not loaded yet.

    Args:
        model: the model.
        tokenizer: use this tokenizer when the model is loaded here and none was chosen.
    """
    if isinstance(model, Model):
        return model
    source = model if isinstance(model, ModelSource) else ModelSource(model)
    return replace(source, tokenizer=source.tokenizer or tokenizer).load()


def read_contents(model: ModelLike) -> ModelContents:
    """Return the model as values, read without building its network where it is not loaded."""
    if isinstance(model, Model):
        return model.contents()
    source = model if isinstance(model, ModelSource) else ModelSource(model)
    return read_model(source.source, options=source.options)
