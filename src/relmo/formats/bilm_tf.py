"""The files of bilm-tf and AllenNLP (and of simple_elmo, which kept the layout): options + HDF5.

Every quirk of that layout is undone here: 261 stored characters for 262 ids, gates in the order
i, g, f, o, a forget bias of 1 that is not stored, kernels stored input-major.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from relmo.config import N_BYTE_CHARACTERS, ModelConfig, parse_config
from relmo.errors import FormatError, RelmoWarning
from relmo.files import directory_written_atomically
from relmo.formats.contents import ModelContents, Softmax
from relmo.formats.gates import add_forget_bias, remove_forget_bias, reorder_gates
from relmo.formats.hdf5 import Hdf5File, hdf5_names
from relmo.formats.model_files import ModelFiles, find_json, read_text_bytes, read_text_head
from relmo.text.vocabulary import SPECIAL, Vocabulary, parse_vocabulary

KNOWN_OPTIONS = {
    "": "lstm char_cnn bidirectional dropout all_clip_norm_val n_epochs n_train_tokens batch_size "
    "n_tokens_vocab unroll_steps n_negative_samples_batch learning_rate sample_softmax "
    "share_embedding_softmax",
    "lstm.": "dim projection_dim n_layers cell_clip proj_clip use_skip_connections",
    "char_cnn.": "filters n_highway embedding n_characters max_characters_per_token activation",
}
HIGHWAY_NAMES = (
    ("gate", "carry"),
    ("transform", "transform"),
)  # their "carry" gate weights the new value
BARE, STACKED = "LSTMCell", "MultiRNNCell/Cell{}/LSTMCell"  # a lone layer, one of several


def recognizes(source: ModelFiles) -> bool:
    """Whether there are options with an LSTM and a character CNN, and HDF5 weights."""
    return bool(find_json(source, "lstm", "char_cnn")) and bool(hdf5_names(source))


def read(source: ModelFiles) -> ModelContents:
    """Read options, weights and, if present, vocabulary and softmax."""
    name, options = _only(find_json(source, "lstm", "char_cnn"), source, "options file")
    with ExitStack() as stack:
        files = {n: stack.enter_context(Hdf5File(source, n)) for n in hdf5_names(source)}
        weights_name, weights = _only(
            {n: f for n, f in files.items() if "char_embed" in f}, source, "weights file"
        )
        config = parse_options(options, f"{source.where}: {name}", weights)
        tensors, remainders = _read_weights(weights, config)
        softmaxes = {n: f for n, f in files.items() if "softmax/W" in f}
        softmax = None
        if softmaxes:
            softmax = _read_softmax(_only(softmaxes, source, "softmax file")[1], config)
    return ModelContents(
        config=config,
        tensors=tensors,
        remainders=remainders,
        origin=f"bilm-tf / AllenNLP HDF5 ({weights_name})",
        vocabulary=_find_vocabulary(source),
        softmax=softmax,
    )


def parse_options(options: Mapping[str, Any], where: str, weights: Hdf5File) -> ModelConfig:
    """Parse the options of bilm-tf; whether there are projections is seen from the weights."""
    lstm, characters = options["lstm"], options["char_cnn"]
    if not isinstance(lstm, dict) or not isinstance(characters, dict):
        raise FormatError(f"{where}: lstm and char_cnn must be JSON objects.")
    unknown = sorted(
        prefix + key
        for prefix, part in (("", options), ("lstm.", lstm), ("char_cnn.", characters))
        for key in part
        if key not in KNOWN_OPTIONS[prefix].split()
    )
    if unknown:
        message = f"{where}: unknown options {', '.join(unknown)} are not used."
        warnings.warn(message, RelmoWarning, stacklevel=2)
    n_characters = characters.get("n_characters", 262)
    if n_characters not in (261, 262):
        raise FormatError(
            f"{where}: char_cnn.n_characters is {n_characters}, but models of this format have 261 "
            "(as trained) or 262 (with the padding row)."
        )
    embedding = characters.get("embedding")
    encoder = {
        "character_dim": embedding.get("dim") if isinstance(embedding, dict) else None,
        "max_characters": characters.get("max_characters_per_token", 50),
        "filters": characters.get("filters"),
        "n_highway": characters.get("n_highway") or 0,
        "activation": characters.get("activation", "relu"),
        "projection": "CNN_proj" in weights,
    }
    stack = {
        "cell_dim": lstm.get("dim"),
        "projection_dim": lstm.get("projection_dim"),
        "n_layers": lstm.get("n_layers", 1),
        "cell_clip": lstm.get("cell_clip") or None,
        "projection_clip": lstm.get("proj_clip") or None,
        "residual": lstm.get("use_skip_connections") or False,
        "projection": any(
            f"RNN_0/RNN/{cell}/W_P_0" in weights for cell in (BARE, STACKED.format(0))
        ),
    }
    return parse_config(ModelConfig, {"encoder": encoder, "lstm": stack}, where)


def format_options(config: ModelConfig, vocabulary_size: int | None) -> dict[str, Any]:
    """The options that bilm-tf and AllenNLP read for inference (262 characters)."""
    encoder, lstm = config.encoder, config.lstm
    options: dict[str, Any] = {
        "lstm": {
            "dim": lstm.cell_dim,
            "projection_dim": lstm.projection_dim,
            "n_layers": lstm.n_layers,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.projection_clip,
            "use_skip_connections": lstm.residual,
        },
        "char_cnn": {
            "embedding": {"dim": encoder.character_dim},
            "filters": [list(f) for f in encoder.filters],
            "n_highway": encoder.n_highway,
            "n_characters": 262,
            "max_characters_per_token": encoder.max_characters,
            "activation": encoder.activation,
        },
    }
    if vocabulary_size is not None:
        options["n_tokens_vocab"] = vocabulary_size
    return options


def write(contents: ModelContents, directory: Path) -> None:
    """Write options.json, weights.hdf5 and, if known, softmax.hdf5 and vocab.txt."""
    if contents.config.encoder.scheme != "bytes" or contents.config.encoder.n_words:
        raise FormatError(
            f"A model that knows characters or words by a lexicon ({contents.origin}) cannot be "
            "written as bilm-tf HDF5, which holds byte models only. Use relmo's format.",
            settings=["to"],
        )
    vocabulary = contents.vocabulary
    with directory_written_atomically(directory) as folder:
        options = format_options(contents.config, len(vocabulary) if vocabulary else None)
        (folder / "options.json").write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
        with h5py.File(folder / "weights.hdf5", "w") as root:
            for name, array in _legacy_arrays(contents):
                root.create_dataset(name, data=array)
        if contents.softmax is not None:
            with h5py.File(folder / "softmax.hdf5", "w") as root:
                root.create_dataset("softmax/W", data=contents.softmax.weight.float().numpy())
                root.create_dataset("softmax/b", data=contents.softmax.bias.float().numpy())
        if vocabulary is not None:
            (folder / "vocab.txt").write_text(vocabulary.to_text(), encoding="utf-8", newline="\n")


# ---- conversion between their tensors and ours --------------------------------------------------


def _read_weights(
    file: Hdf5File, config: ModelConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All tensors in relmo's layout, and the rounding remainders of the forget bias."""
    encoder, lstm = config.encoder, config.lstm
    dim, n_filters, output_dim = encoder.character_dim, encoder.n_filters, lstm.projection_dim
    tensors: dict[str, np.ndarray] = {}
    remainders: dict[str, np.ndarray] = {}
    get = file.read
    stored = get("char_embed", N_BYTE_CHARACTERS - 1, dim)
    no_token = np.zeros_like(stored[:1])  # id 0
    tensors["encoder.characters.weight"] = np.concatenate([no_token, stored])
    for i, (width, n) in enumerate(encoder.filters):
        kernel = get(f"CNN/W_cnn_{i}", 1, width, dim, n)
        tensors[f"encoder.convolutions.{i}.weight"] = kernel[0].transpose(2, 1, 0)
        tensors[f"encoder.convolutions.{i}.bias"] = get(f"CNN/b_cnn_{i}", n)
    for k in range(encoder.n_highway):
        for ours, theirs in HIGHWAY_NAMES:
            weight = get(f"CNN_high_{k}/W_{theirs}", n_filters, n_filters)
            tensors[f"encoder.highways.{k}.{ours}.weight"] = weight.T
            tensors[f"encoder.highways.{k}.{ours}.bias"] = get(
                f"CNN_high_{k}/b_{theirs}", n_filters
            )
    if encoder.projection:
        tensors["encoder.projection.weight"] = get("CNN_proj/W_proj", n_filters, output_dim).T
        tensors["encoder.projection.bias"] = get("CNN_proj/b_proj", output_dim)
    for ours, theirs in _lstm_names(
        config, lone_layer_is_bare="RNN_0/RNN/MultiRNNCell" not in file
    ):
        kernel = reorder_gates(get(f"{theirs}/W_0", 2 * output_dim, 4 * lstm.cell_dim)).T
        tensors[f"{ours}.input_weight"] = kernel[:, :output_dim]
        tensors[f"{ours}.recurrent_weight"] = kernel[:, output_dim:]
        bias = reorder_gates(get(f"{theirs}/B", 4 * lstm.cell_dim))
        tensors[f"{ours}.bias"], remainders[f"{ours}.bias"] = add_forget_bias(bias)
        if lstm.projection:
            projection = get(f"{theirs}/W_P_0", lstm.cell_dim, output_dim)
            tensors[f"{ours}.projection_weight"] = projection.T
    return _as_torch(tensors), _as_torch(remainders)


def _legacy_arrays(contents: ModelContents) -> Iterator[tuple[str, np.ndarray]]:
    """The inverse of `_read_weights`: tensors under their names, in their layouts."""
    config = contents.config
    tensors = {name: tensor.float().numpy() for name, tensor in contents.tensors.items()}
    yield "char_embed", tensors["encoder.characters.weight"][1:]
    for i in range(len(config.encoder.filters)):
        kernel = tensors[f"encoder.convolutions.{i}.weight"]
        yield f"CNN/W_cnn_{i}", kernel.transpose(2, 1, 0)[None]
        yield f"CNN/b_cnn_{i}", tensors[f"encoder.convolutions.{i}.bias"]
    for k in range(config.encoder.n_highway):
        for ours, theirs in HIGHWAY_NAMES:
            yield f"CNN_high_{k}/W_{theirs}", tensors[f"encoder.highways.{k}.{ours}.weight"].T
            yield f"CNN_high_{k}/b_{theirs}", tensors[f"encoder.highways.{k}.{ours}.bias"]
    if "encoder.projection.weight" in tensors:
        yield "CNN_proj/W_proj", tensors["encoder.projection.weight"].T
        yield "CNN_proj/b_proj", tensors["encoder.projection.bias"]
    for ours, theirs in _lstm_names(config, lone_layer_is_bare=True):
        halves = [tensors[f"{ours}.input_weight"], tensors[f"{ours}.recurrent_weight"]]
        yield f"{theirs}/W_0", reorder_gates(np.concatenate(halves, axis=1).T)
        bias = tensors[f"{ours}.bias"]
        remainder = contents.remainders.get(f"{ours}.bias")
        rest = np.zeros_like(bias) if remainder is None else remainder.float().numpy()
        yield f"{theirs}/B", reorder_gates(remove_forget_bias(bias, rest))
        if f"{ours}.projection_weight" in tensors:
            yield f"{theirs}/W_P_0", tensors[f"{ours}.projection_weight"].T


def _lstm_names(config: ModelConfig, lone_layer_is_bare: bool) -> Iterator[tuple[str, str]]:
    bare = lone_layer_is_bare and config.lstm.n_layers == 1
    for way, stack in enumerate(("forward_stack", "backward_stack")):
        for layer in range(config.lstm.n_layers):
            cell = BARE if bare else STACKED.format(layer)
            yield f"{stack}.{layer}", f"RNN_{way}/RNN/{cell}"


def _as_torch(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}


def _read_softmax(file: Hdf5File, config: ModelConfig) -> Softmax:
    weight = file.read("softmax/W", None, config.lstm.projection_dim)
    bias = file.read("softmax/b", len(weight))
    return Softmax(torch.from_numpy(weight), torch.from_numpy(bias))


def _find_vocabulary(source: ModelFiles) -> Vocabulary | None:
    """The one text file that begins like a vocabulary, gzipped or not."""
    begin = [word.encode() for word in SPECIAL]
    for name in source.names():
        if read_text_head(source, name, 64).replace(b"\r\n", b"\n").split(b"\n")[:3] == begin:
            return parse_vocabulary(read_text_bytes(source, name), f"{source.where}: {name}")
    return None


def _only(found: dict[str, Any], source: ModelFiles, what: str) -> tuple[str, Any]:
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "none"
        raise FormatError(
            f"{source.where}: expected one {what}, found {len(found)} ({names}). "
            "Name the files explicitly: relmo.load(options=..., weights=...)."
        )
    return next(iter(found.items()))
