"""Read the vector files that `relmo embed` wrote, sentence by sentence.

Files are not trusted: shapes, types and sizes are checked before memory is allocated, and no file
can run code. Only what a format stores in one piece is held in memory: the sentences of HDF5, the
header of safetensors, a row group of parquet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from safetensors import SafetensorError, safe_open

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError, FormatError
from relmo.formats.hdf5 import DAMAGED
from relmo.formats.model_files import largest_unpacked
from relmo.inference.batching import Sentence
from relmo.inference.layer_selection import LayerSpec, select_layers
from relmo.inference.model import Model
from relmo.text.corpus import read_lines
from relmo.vectors.sinks import SINKS

_MAX_WIDTH = 1 << 17  # numbers per token, all layers
_BATCH_BYTES = 1 << 24  # of parquet rows per batch
_RTOL, _ATOL = 2e-3, 1e-4  # the precision of float16


def are_vectors(paths: Sequence[str | Path]) -> bool:
    """Whether files hold vectors rather than text, by their extensions.

    Raises:
        ConfigError: Some files hold vectors, others text.
    """
    stored = [Path(path).suffix.lower() in SINKS for path in paths]
    if any(stored) and not all(stored):
        raise ConfigError(
            f"{paths[stored.index(True)]} holds vectors and {paths[stored.index(False)]} text: "
            "index one kind at a time."
        )
    return bool(stored) and all(stored)


def read_embedded(
    path: str | Path, model: Model, layers: LayerSpec
) -> Iterator[tuple[list[str], Array]]:
    """Yield the tokens of each sentence and one vector per token, (tokens, D).

    Args:
        path: a file that `relmo embed` wrote with this model: all layers, or only the wanted one.
        model: the model. The first sentence is embedded again to check that it is the same one.
        layers: the layer to take, or their average.
    """
    selection = select_layers(layers, model.config.n_outputs)
    checked = False
    for sentence, stored in read_vectors(path):
        tokens, vectors = _tokens(sentence, model), stored
        if not tokens:
            continue
        where = f"{path}, {' '.join(tokens)!r:.40}"
        if vectors.ndim == 3 and len(vectors) == model.config.n_outputs:
            assert selection.matrix is not None
            vectors = np.tensordot(selection.matrix[0].numpy(), vectors, 1)  # (tokens, D)
        if vectors.shape[-2:] != (len(tokens), model.config.output_dim) or vectors.ndim != 2:
            raise DataError(
                f"{where}: found vectors of shape {list(stored.shape)} for {len(tokens)} tokens "
                f"by the tokenizer {model.tokenizer!r}; this model gives "
                f"[{model.config.n_outputs}, {len(tokens)}, {model.config.output_dim}], or "
                "one layer of that. Give the model and the tokenizer that the file was made with.",
                settings=["model", "tokenizer"],
            )
        if not checked:
            _check_model(where, model, tokens, vectors, layers)
            checked = True
        yield tokens, vectors


def read_vectors(path: str | Path) -> Iterator[tuple[Sentence, Array]]:
    """Yield each sentence of a file, as tokens or (if the file has no tokens) as text, and vectors.

    Vectors are (tokens, D) or (layers, tokens, D), in float32. HDF5 holds equal sentences once.
    """
    path = Path(path)
    if path.suffix.lower() not in SOURCES:
        raise ConfigError(
            f"{path} holds vectors without their sentences. Use a file that ends in one of "
            f"{', '.join(SOURCES)}."
        )
    if not path.is_file():
        raise DataError(f"Cannot read {path}: there is no such file. Check the name.")
    for sentence, stored in SOURCES[path.suffix.lower()](path):
        vectors = np.asarray(stored, np.float32)
        n_tokens = len(sentence) if isinstance(sentence, list) else None
        if n_tokens != 0 and (
            vectors.ndim not in (2, 3) or n_tokens not in (None, vectors.shape[-2])
        ):
            raise _damaged(path, f"{sentence!r:.40} has vectors of shape {list(vectors.shape)}")
        if not np.isfinite(vectors).all():
            raise _damaged(path, f"{sentence!r:.40} has a value that is not finite")
        yield sentence, vectors


def _tokens(sentence: Sentence, model: Model) -> list[str]:
    if isinstance(sentence, str):
        return [token.text for token in model.tokenize(sentence)]
    return list(sentence)


def _check_model(
    where: str, model: Model, tokens: list[str], vectors: Array, layers: LayerSpec
) -> None:
    (expected,) = model.embed([tokens], layers=layers)
    if not np.allclose(vectors, expected, rtol=_RTOL, atol=_ATOL):
        raise ConfigError(
            f"{where}: the vectors are not those that this model gives for layer {layers!r} (they "
            f"differ by {np.abs(vectors - expected).max():.3g}). Give the model and the layer "
            "that the file was made with.",
            settings=["model", "layers", "layer"],
        )


def _hdf5(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with h5py.File(path, "r") as file:
            listed = _dataset(file, "sentence_to_index", path)
            text_type = h5py.check_string_dtype(listed.dtype)
            if listed.shape != (1,) or text_type is None or text_type.length is not None:
                raise ValueError("sentence_to_index is not one string")
            numbers = {int(number): text for text, number in json.loads(listed[0]).items()}
            for number in sorted(numbers):
                dataset = _dataset(file, str(number), path)
                if dataset.dtype.kind != "f":
                    raise ValueError(f"{number} is of {dataset.dtype}")
                yield numbers[number], dataset[()]
    except (*DAMAGED, AttributeError) as error:
        raise _damaged(path, error) from None


def _dataset(file: h5py.File, name: str, path: Path) -> h5py.Dataset:
    """Open a dataset that lies in this file and has a plausible size."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is missing, or a link")
    item = file[name]
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
        raise ValueError(f"{name} is no dataset of this file")
    n_values = max(math.prod(item.shape or ()), math.prod(item.chunks or ()))
    if n_values * item.dtype.itemsize > largest_unpacked(path.stat().st_size):
        raise ValueError(f"{name} asks for far more memory than a file of this size can hold")
    return item


def _safetensors(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with safe_open(path, "np") as file:
            texts = json.loads((file.metadata() or {})["sentences"])
            for number, text in enumerate(texts):
                if not isinstance(text, str):
                    raise TypeError(f"sentence {number} is no text")
                yield text, file.get_tensor(str(number))
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from None


def _jsonl(path: Path) -> Iterator[tuple[list[str], Any]]:
    for number, line in enumerate(read_lines(path, is_fixed=True), start=1):
        try:
            values = json.loads(line)
            with np.errstate(
                over="ignore"
            ):  # too large numbers become infinite, and are refused later
                tokens, vectors = values["tokens"], np.array(values["vectors"], np.float32)
            if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
                raise TypeError("tokens is no list of strings")
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number}: expected tokens and vectors as `relmo embed` writes them, "
                f"found {line[:60]!r} ({error})."
            ) from None
        yield tokens, vectors


def _parquet(path: Path) -> Iterator[tuple[list[str], Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Reading .parquet needs pyarrow: pip install 'relmo[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _sentences_of(file, pyarrow)
    except (OSError, pyarrow.ArrowException, LookupError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None


def _sentences_of(file: Any, arrow: Any) -> Iterator[tuple[list[str], Any]]:
    """Collect the rows of each sentence, which may be spread over several batches."""
    kind, facts = file.schema_arrow.field("vector").type, file.schema_arrow.metadata or {}
    n_layers, dim = int(facts[b"n_layers"]), int(facts[b"dim"])
    if not arrow.types.is_fixed_size_list(kind) or not arrow.types.is_floating(kind.value_type):
        raise TypeError(f"vector is {kind}")
    if min(n_layers, dim) < 1 or not n_layers * dim == kind.list_size <= _MAX_WIDTH:
        raise ValueError(f"vector is {kind}, not {n_layers} layers of {dim}")
    for number, pieces in groupby(_pieces(file, kind.list_size), lambda piece: piece[0]):
        _, positions, tokens, vectors = zip(*pieces, strict=True)
        words = [word for some in tokens for word in some]
        if not np.array_equal(np.concatenate(positions), np.arange(len(words))):
            raise ValueError(f"the tokens of sentence {number} are not in order")
        layers = np.concatenate(vectors).reshape(-1, n_layers, dim).swapaxes(0, 1)
        yield words, layers[0] if n_layers == 1 else layers


def _pieces(file: Any, width: int) -> Iterator[tuple[int, Any, list[str], Any]]:
    """Yield number, positions, tokens and vectors of the part of a sentence in one batch."""
    for batch in file.iter_batches(max(1, _BATCH_BYTES // (4 * width))):
        numbers, positions = (batch[name].to_numpy() for name in ("sentence", "position"))
        tokens, vectors = batch["token"].to_pylist(), batch["vector"].flatten().to_numpy()
        if None in tokens:
            raise TypeError("a token is null")
        vectors = vectors.reshape(len(tokens), width)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(edges):
            part = slice(start, end)
            yield int(numbers[start]), positions[part], tokens[part], vectors[part]


def _damaged(path: Path, what: object) -> FormatError:
    return FormatError(f"{path} is damaged, or was not written by `relmo embed`: {what}.")


SOURCES: dict[str, Callable[[Path], Iterator[tuple[Sentence, Any]]]] = {
    ".hdf5": _hdf5,
    ".h5": _hdf5,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}
