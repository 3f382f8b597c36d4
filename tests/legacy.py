"""Builders of small random models in the legacy formats, for tests; they know nothing of relmo."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zipfile
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import torch
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float32]
Tensors = dict[str, Array]
Options = Mapping[str, Any]
Tokens = Sequence[str] | None
ARCHITECTURE = "cnn_50_100_512_4096_sample.json"
# The parts of an ELMoForManyLangs model, in the order in which the oracle takes them.
ManyLangs = namedtuple("ManyLangs", "architecture token_embedder encoder char_dic word_dic")


def normal(rng: Generator, *shape: int, scale: float) -> Array:
    return rng.normal(0, scale, shape).astype(np.float32)


def pick_options(pick: Callable[[Sequence[Any]], Any], overrides: Options) -> dict[str, Any]:
    first = pick(range(1, 6))
    drawn = [[first + i, pick(range(1, 5))] for i in range(pick([1, 2, 3]))]
    filters = overrides.get("filters", drawn)
    # F == P leaves out CNN_proj, H == P leaves out W_P_0; H < P is no model.
    F, H = sum(n for _, n in filters), overrides.get("dim", np.inf)
    P = overrides.get("projection_dim", pick([p for p in (*range(1, 7), F, F) if p <= H]))
    lstm = {
        "projection_dim": P,
        "dim": P + pick(range(6)),
        "n_layers": pick([1, 2, 3, 4]),
        "cell_clip": pick([None, 0.5, 3]),
        "proj_clip": pick([None, 0.5, 3]),
        "use_skip_connections": pick([False, True]),
    }
    char_cnn = {
        "filters": filters,
        "n_highway": pick([0, 1, 2, 3]),
        "embedding": {"dim": pick(range(1, 5))},
        "n_characters": 262,
        "max_characters_per_token": pick(range(10, 51)),
        "activation": pick(["relu", "tanh"]),
    }
    assert overrides.keys() <= lstm.keys() | char_cnn.keys(), f"unknown key in {overrides}"
    options = {"lstm": lstm, "char_cnn": char_cnn}
    return {name: {k: overrides.get(k, part[k]) for k in part} for name, part in options.items()}


def random_options(rng: Generator, **overrides: Any) -> dict[str, Any]:
    """Contents of options.json of a small model; overrides by key, whichever section it is in."""
    return pick_options(lambda values: values[int(rng.integers(len(values)))], overrides)


@st.composite
def options_strategy(draw: st.DrawFn, /, **overrides: Any) -> dict[str, Any]:
    return pick_options(lambda values: draw(st.sampled_from(values)), overrides)


def random_bilm_tf(rng: Generator, options: Options) -> Tensors:
    """Tensors by their HDF5 names, large enough for clips of 3 to bite within a sentence."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    H, P, e = lstm["dim"], lstm["projection_dim"], cnn["embedding"]["dim"]
    F = sum(n for _, n in cnn["filters"])
    tensors = {"char_embed": rng.uniform(-1, 1, (261, e)).astype(np.float32)}
    for i, (width, n) in enumerate(cnn["filters"]):
        tensors[f"CNN/W_cnn_{i}"] = normal(rng, 1, width, e, n, scale=1 / np.sqrt(width * e))
        tensors[f"CNN/b_cnn_{i}"] = normal(rng, n, scale=0.2)
    for k, name in itertools.product(range(cnn["n_highway"]), ("carry", "transform")):
        tensors[f"CNN_high_{k}/W_{name}"] = normal(rng, F, F, scale=1 / np.sqrt(F))
        tensors[f"CNN_high_{k}/b_{name}"] = normal(rng, F, scale=0.5)
    if F != P:
        tensors["CNN_proj/W_proj"] = normal(rng, F, P, scale=1 / np.sqrt(F))
        tensors["CNN_proj/b_proj"] = normal(rng, P, scale=0.2)
    for direction, layer in itertools.product((0, 1), range(lstm["n_layers"])):
        level = f"MultiRNNCell/Cell{layer}/" if lstm["n_layers"] > 1 else ""
        cell = f"RNN_{direction}/RNN/{level}LSTMCell"
        tensors[f"{cell}/W_0"] = normal(rng, 2 * P, 4 * H, scale=0.2 / np.sqrt(P))
        tensors[f"{cell}/B"] = normal(rng, 4 * H, scale=1.5)
        if H != P:
            tensors[f"{cell}/W_P_0"] = normal(rng, H, P, scale=4 / np.sqrt(H))
    return tensors


def write_hdf5(target: Path | BinaryIO, tensors: Tensors) -> None:
    with h5py.File(target, "w") as file:
        for name, value in tensors.items():
            file.create_dataset(name, data=value, dtype="float32")


def lines(tokens: Sequence[str]) -> bytes:
    return "".join(f"{token}\n" for token in tokens).encode()


def write_bilm_tf(
    directory: Path,
    options: Options,
    tensors: Tensors,
    *,
    softmax: tuple[Array, Array] | None = None,
    vocabulary: Tokens = None,
) -> tuple[Path, Path]:
    """Write a model, with its `softmax` (V, P), (V,) if given: paths of the options and weights."""
    directory.mkdir(parents=True, exist_ok=True)
    options_path, weights_path = directory / "options.json", directory / "weights.hdf5"
    options_path.write_text(json.dumps(options))
    write_hdf5(weights_path, tensors)
    if softmax is not None:
        write_hdf5(directory / "softmax.hdf5", {"softmax/W": softmax[0], "softmax/b": softmax[1]})
    if vocabulary is not None:
        (directory / "vocab.txt").write_bytes(lines(vocabulary))
    return options_path, weights_path


def write_simple_elmo_zip(
    path: Path, options: Options, tensors: Tensors, vocabulary: Tokens = None, gz: bool = False
) -> None:
    buffer = io.BytesIO()
    write_hdf5(buffer, tensors)
    options = {**options, "char_cnn": {**options["char_cnn"], "n_characters": 261}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.hdf5", buffer.getvalue())
        archive.writestr("options.json", json.dumps(options))
        if vocabulary is not None:
            text = lines(vocabulary)
            archive.writestr(f"vocab.txt{'.gz' * gz}", gzip.compress(text) if gz else text)


def random_many_langs(
    rng: Generator, architecture: Options, n_characters: int, n_words: int
) -> tuple[Tensors, Tensors]:
    embedder, encoder = architecture["token_embedder"], architecture["encoder"]
    word_dim, char_dim, filters = (embedder[k] for k in ("word_dim", "char_dim", "filters"))
    H, P, F = encoder["dim"], encoder["projection_dim"], sum(n for _, n in filters if char_dim)
    shapes: dict[str, Any] = {"projection.weight": (P, word_dim + F), "projection.bias": (P,)}
    if word_dim:
        shapes["word_emb_layer.embedding.weight"] = (n_words, word_dim)
    if char_dim:
        shapes["char_emb_layer.embedding.weight"] = (n_characters, char_dim)
        for i, (width, n) in enumerate(filters):
            shapes[f"convolutions.{i}.weight"] = (n, char_dim, width)
            shapes[f"convolutions.{i}.bias"] = (n,)
        for k in range(embedder["n_highway"]):
            shapes[f"highways._layers.{k}.weight"] = (2 * F, F)
            shapes[f"highways._layers.{k}.bias"] = (2 * F,)
    cells = {}
    for side, layer in itertools.product(("forward", "backward"), range(encoder["n_layers"])):
        cell = f"{side}_layer_{layer}"
        cells[f"{cell}.input_linearity.weight"] = normal(rng, 4 * H, P, scale=0.2)
        cells[f"{cell}.state_linearity.weight"] = normal(rng, 4 * H, P, scale=0.2)
        cells[f"{cell}.state_linearity.bias"] = normal(rng, 4 * H, scale=1.5)
        cells[f"{cell}.state_projection.weight"] = normal(rng, P, H, scale=1.5)
    return {name: normal(rng, *shape, scale=0.7) for name, shape in shapes.items()}, cells


def write_many_langs(
    directory: Path,
    rng: Generator,
    *,
    word_dim: int = 5,
    char_dim: int = 3,
    n_layers: int = 2,
    **embedder: Any,
) -> ManyLangs:
    """Write a model directory; `embedder` overrides further keys of its `token_embedder`."""
    sizes = {"projection_dim": 4, "cell_clip": 3, "proj_clip": 3, "dim": 6, "n_layers": n_layers}
    cnn = {"name": "cnn", "activation": "relu", "filters": [[1, 3], [2, 4]], "n_highway": 2}
    cnn |= {"word_dim": word_dim, "char_dim": char_dim, "max_characters_per_token": 50, **embedder}
    architecture = {"encoder": {"name": "elmo", **sizes}, "token_embedder": cnn, "dropout": 0.1}
    architecture["classifier"] = {"name": "sampled_softmax", "n_samples": 8192}
    characters = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", *"abcdef日\u2028\u3000"]
    # As in the original, word.dic is always there and char.dic only with characters.
    char_dic = {token: i for i, token in enumerate(characters) if char_dim}
    word_dic = {w: i for i, w in enumerate(["<oov>", "<bos>", "<eos>", "<pad>", "ab", "cd", "日"])}
    tensors = random_many_langs(rng, architecture, len(char_dic), len(word_dic))
    directory.mkdir(parents=True, exist_ok=True)
    config = {"seed": 1, "config_path": f"/users/somebody/configs/{ARCHITECTURE}"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / ARCHITECTURE).write_text(json.dumps(architecture))
    for name, ids in {"char.dic": char_dic, "word.dic": word_dic}.items():
        if ids:
            # The ideographic space comes as a line that holds the id alone.
            rows = [f"{i}" if token == "\u3000" else f"{token}\t{i}" for token, i in ids.items()]
            (directory / name).write_bytes(lines(rows))
    for name, part in zip(("token_embedder.pkl", "encoder.pkl"), tensors, strict=True):
        torch.save({key: torch.from_numpy(value) for key, value in part.items()}, directory / name)
    return ManyLangs(architecture, *tensors, char_dic, word_dic)
