"""An independent biLM in plain NumPy: the oracle that relmo's network is compared with.

It reads legacy tensors under their legacy names (bilm-tf's HDF5, ELMoForManyLangs' state dicts) and
follows their conventions directly, so that it shares none with relmo. One sentence, one step at a
time: no batch, no mask. C characters per token, e character dim, F filters, P projection, H cell, L
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Options = Mapping[str, Any]
Ids = Mapping[str, int]
CellState = tuple[Array, Array]  # h (P,), before the residual is added, and c (H,)
State = tuple[list[CellState], list[CellState]]  # forward, backward; a cell state for each layer

BOUNDARIES = {"<S>": [256], "</S>": [257]}
BEGIN_WORD, END_WORD, PAD = 258, 259, 260


def sigmoid(x: Array) -> Array:
    return (1 + np.tanh(x / 2)) / 2


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": relu, "tanh": np.tanh}


def clip(x: Array, limit: float | None) -> Array:
    return x if limit is None else np.clip(x, -limit, limit)


def cast(tensors: Tensors, dtype: DTypeLike) -> dict[str, Array]:
    return {name: np.asarray(value, dtype) for name, value in tensors.items()}


def convolve(characters: Array, kernels: Iterable[tuple[Array, Array]], activation: str) -> Array:
    """Maximum over positions of each valid convolution, then the activation: (C, e) -> (F,)."""
    parts = []
    for kernel, bias in kernels:  # (width, e, n), (n,)
        width, _, n = kernel.shape
        positions = range(len(characters) - width + 1)
        windows = np.stack([characters[p : p + width].reshape(-1) for p in positions])
        parts.append(np.max(windows @ kernel.reshape(-1, n) + bias, axis=0))
    return ACTIVATIONS[activation](np.concatenate(parts))


def run_lstm(
    inputs: Array,
    state: CellState,
    weights: tuple[Array, Array, Array | None],
    clips: Options,
    *,
    gate_order: str,
    forget_bias: float,
    residual: bool,
) -> tuple[Array, CellState]:
    """One layer in one direction: (n, P) to (n, P), and the state after the last step."""
    kernel, bias, projection = weights  # (2P, 4H), (4H,), (H, P)
    h, c = state
    outputs = []
    for x in inputs:
        blocks = np.split(np.concatenate([x, h]) @ kernel + bias, 4)  # each (H,)
        gate = dict(zip(gate_order, blocks, strict=True))
        c = sigmoid(gate["f"] + forget_bias) * c + sigmoid(gate["i"]) * np.tanh(gate["g"])
        c = clip(c, clips.get("cell_clip"))
        h = sigmoid(gate["o"]) * np.tanh(c)
        # As in TensorFlow's LSTMCell, where there is no projection nothing clips h.
        if projection is not None:
            h = clip(h @ projection, clips.get("proj_clip"))
        outputs.append(h + x if residual else h)
    return np.stack(outputs), (h, c)


# bilm-tf


def character_ids(token: str, max_characters: int = 50) -> NDArray[np.int64]:
    """Character ids of one token, (C,), after the shift by one."""
    cut = list(token.encode("utf-8", "ignore")[: max_characters - 2])
    ids = [BEGIN_WORD, *BOUNDARIES.get(token, cut), END_WORD]
    return np.array(ids + [PAD] * (max_characters - len(ids))) + 1


def encode_token(
    options: Options, tensors: Tensors, token: str, dtype: DTypeLike = np.float64
) -> Array:
    """The context-free vector of a token, (P,)."""
    t, cnn = cast(tensors, dtype), options["char_cnn"]
    embedding = np.concatenate([np.zeros_like(t["char_embed"][:1]), t["char_embed"]])  # (262, e)
    characters = embedding[character_ids(token, cnn["max_characters_per_token"])]  # (C, e)
    kernels = [(t[f"CNN/W_cnn_{i}"][0], t[f"CNN/b_cnn_{i}"]) for i in range(len(cnn["filters"]))]
    x = convolve(characters, kernels, cnn["activation"])  # (F,)
    for k in range(cnn.get("n_highway") or 0):
        high = f"CNN_high_{k}"
        gate = sigmoid(x @ t[f"{high}/W_carry"] + t[f"{high}/b_carry"])
        x = gate * relu(x @ t[f"{high}/W_transform"] + t[f"{high}/b_transform"]) + (1 - gate) * x
    if len(x) != options["lstm"]["projection_dim"]:
        x = x @ t["CNN_proj/W_proj"] + t["CNN_proj/b_proj"]
    return x


def zero_state(options: Options, dtype: DTypeLike = np.float64) -> State:
    lstm = options["lstm"]
    cell = np.zeros(lstm["projection_dim"], dtype), np.zeros(lstm["dim"], dtype)
    return [cell] * lstm["n_layers"], [cell] * lstm["n_layers"]


def run_direction(
    options: Options, tensors: Tensors, direction: int, vectors: Array, state: list[CellState]
) -> tuple[Array, list[CellState]]:
    """Run RNN_0 (forward) or RNN_1 (backward) over (n, P) in its reading order: (L, n, P)."""
    t, lstm = cast(tensors, vectors.dtype), options["lstm"]
    x, run = vectors, []
    for layer in range(lstm["n_layers"]):
        level = f"MultiRNNCell/Cell{layer}/" if lstm["n_layers"] > 1 else ""
        cell = f"RNN_{direction}/RNN/{level}LSTMCell"
        projection = t[f"{cell}/W_P_0"] if lstm["dim"] != lstm["projection_dim"] else None
        weights = (t[f"{cell}/W_0"], t[f"{cell}/B"], projection)
        residual = bool(lstm.get("use_skip_connections")) and layer > 0
        x, last = run_lstm(
            x, state[layer], weights, lstm, gate_order="igfo", forget_bias=1, residual=residual
        )
        run.append((x, last))
    return np.stack([x for x, _ in run]), [last for _, last in run]


def layers(
    options: Options,
    tensors: Tensors,
    sentence_tokens: Sequence[str],
    state: State | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Array, State]:
    """All layers of one sentence, (L + 1, n_tokens, 2P), boundaries stripped, and the new state."""
    t = cast(tensors, dtype)
    forward_state, backward_state = zero_state(options, dtype) if state is None else state
    x = np.stack([encode_token(options, t, w, dtype) for w in ["<S>", *sentence_tokens, "</S>"]])
    forward, forward_state = run_direction(options, t, 0, x, forward_state)
    backward, backward_state = run_direction(options, t, 1, x[::-1], backward_state)
    both = [np.concatenate([[x], forward]), np.concatenate([[x], backward[:, ::-1]])]
    return np.concatenate(both, axis=2)[:, 1:-1], (forward_state, backward_state)


# ELMoForManyLangs


def read_dictionary(path: Path) -> dict[str, int]:
    """char.dic or word.dic; a line with the id alone is the ideographic space."""
    text = path.read_bytes().decode("utf-8")
    fields = [line.split("\t") for line in text.split("\n") if line]
    return {f[0] if len(f) == 2 else "\u3000": int(f[-1]) for f in fields}


def many_langs_encode_token(
    embedder: Options, t: Tensors, char_dic: Ids, word_dic: Ids, token: str
) -> Array:
    x = np.zeros(0, t["projection.weight"].dtype)
    if embedder["char_dim"] > 0:
        inside = [token] if token in ("<bos>", "<eos>") else list(token)
        # The original swaps the two: a word begins with <eow> and ends with <bow>.
        row = ["<eow>", *(c if c in char_dic else "<oov>" for c in inside), "<bow>"]
        row += ["<pad>"] * (embedder["max_characters_per_token"] - len(row))
        characters = t["char_emb_layer.embedding.weight"][[char_dic[c] for c in row]]  # (C, e)
        names = [f"convolutions.{i}" for i in range(len(embedder["filters"]))]
        kernels = [
            (t[f"{n}.weight"].transpose(2, 1, 0), t[f"{n}.bias"]) for n in names
        ]  # (w, e, n)
        x = convolve(characters, kernels, embedder["activation"])  # (F,)
        for k in range(embedder["n_highway"]):
            both = t[f"highways._layers.{k}.weight"] @ x + t[f"highways._layers.{k}.bias"]
            transform, gate = np.split(both, 2)
            x = sigmoid(gate) * x + (1 - sigmoid(gate)) * relu(transform)
    if embedder["word_dim"] > 0:
        number = word_dic.get(token, word_dic["<oov>"])
        x = np.concatenate([t["word_emb_layer.embedding.weight"][number], x])
    return np.asarray(t["projection.weight"] @ x + t["projection.bias"])


def many_langs_layers(
    architecture: Options,
    token_embedder_tensors: Tensors,
    encoder_tensors: Tensors,
    char_dic: Ids,
    word_dic: Ids,
    sentence: Sequence[str],
    dtype: DTypeLike = np.float64,
) -> Array:
    """All layers of one sentence from a zero state, (L + 1, n_tokens, 2P), boundaries stripped."""
    embedder, encoder = architecture["token_embedder"], architecture["encoder"]
    t = cast({**token_embedder_tensors, **encoder_tensors}, dtype)
    # The original cuts long tokens first, so that the word, too, is looked up by what is left.
    limit = embedder["max_characters_per_token"] - 2
    tokens = ["<bos>", *(token[:limit] for token in sentence), "<eos>"]
    x = np.stack([many_langs_encode_token(embedder, t, char_dic, word_dic, w) for w in tokens])
    every, inputs = [np.concatenate([x, x], axis=1)], {"forward": x, "backward": x[::-1]}
    zeros = np.zeros(encoder["projection_dim"], dtype), np.zeros(encoder["dim"], dtype)
    for layer in range(encoder["n_layers"]):
        for direction in ("forward", "backward"):
            cell = f"{direction}_layer_{layer}"
            matrices = [t[f"{cell}.{name}_linearity.weight"] for name in ("input", "state")]
            kernel, bias = np.concatenate(matrices, axis=1).T, t[f"{cell}.state_linearity.bias"]
            weights = (kernel, bias, t[f"{cell}.state_projection.weight"].T)
            x, residual = inputs[direction], layer > 0
            inputs[direction], _ = run_lstm(
                x, zeros, weights, encoder, gate_order="ifgo", forget_bias=0, residual=residual
            )
        every.append(np.concatenate([inputs["forward"], inputs["backward"][::-1]], axis=1))
    return np.stack(every)[:, 1:-1]
