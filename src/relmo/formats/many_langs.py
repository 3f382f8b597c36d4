"""ELMoForManyLangs: a directory of two pickled state dicts, two lexicons and two JSON files.

Its quirks are undone here: `<bow>` and `<eow>` are swapped; the highway's gate weights the input,
not the transformed value; `config_path` names the architecture by a path on the author's machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from torch import Tensor

from relmo.config import ModelConfig, parse_config
from relmo.errors import FormatError
from relmo.formats.contents import ModelContents
from relmo.formats.model_files import ModelFiles, find_json, read_text_bytes
from relmo.formats.state_dict import read_state_dict
from relmo.text.lexicon import CHARACTER_MARKS, WORD_MARKS, Lexicon

# Both architecture files of the package have the same content, despite their names.
SHIPPED_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
SHIPPED: dict[str, Any] = {
    "encoder": {"projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}


def recognizes(source: ModelFiles) -> bool:
    """Whether there are two state dicts and a configuration that names an architecture."""
    names = set(source.names())
    has_config = bool(find_json(source, "config_path"))
    return {"token_embedder.pkl", "encoder.pkl"} <= names and (
        has_config or bool(find_json(source, "encoder", "token_embedder"))
    )


def read(source: ModelFiles) -> ModelContents:
    """Read the whole directory."""
    stack, token = _find_architecture(source)
    lexicon = Lexicon(
        _read_characters(source) if token.get("char_dim") else (),
        _read_lexicon(source, "word.dic", WORD_MARKS) if token.get("word_dim") else (),
    )
    config = _parse_architecture(stack, token, lexicon, source.where)
    tensors = _convert_encoder(read_state_dict(source, "token_embedder.pkl"), config, source.where)
    tensors |= _convert_stacks(read_state_dict(source, "encoder.pkl"), config, source.where)
    return ModelContents(config, tensors, f"ELMoForManyLangs ({source.where})", lexicon=lexicon)


def _find_architecture(source: ModelFiles) -> tuple[dict[str, Any], dict[str, Any]]:
    """The architecture that config.json names, or else the only one in the directory."""
    there = find_json(source, "encoder", "token_embedder")
    wanted = [
        PurePosixPath(str(config["config_path"]).replace("\\", "/")).name
        for config in find_json(source, "config_path").values()
    ]
    named = [there[name] for name in wanted if name in there] or list(there.values())
    if not named and any(name in SHIPPED_NAMES for name in wanted):
        named = [SHIPPED]
    if len(named) != 1:
        raise FormatError(
            f"{source.where}: expected one architecture, found {len(named)}; config.json names "
            f"{', '.join(wanted) or 'none'}. Put that JSON file into the directory."
        )
    stack, token = named[0]["encoder"], named[0]["token_embedder"]
    if not isinstance(stack, dict) or not isinstance(token, dict):
        raise FormatError(f"{source.where}: encoder and token_embedder must be JSON objects.")
    if token.get("name", "cnn") != "cnn" or stack.get("name", "elmo") != "elmo":
        raise FormatError(
            f"{source.where}: a {stack.get('name')} over a {token.get('name')} embedder is no "
            "ELMo; relmo reads elmo over cnn."
        )
    return stack, token


def _parse_architecture(
    stack: Mapping[str, Any], token: Mapping[str, Any], lexicon: Lexicon, where: str
) -> ModelConfig:
    with_characters = bool(lexicon.characters)
    encoder = {
        "scheme": "lexicon",
        "n_characters": len(lexicon.characters),
        "character_dim": token.get("char_dim") or 1,
        "max_characters": token.get("max_characters_per_token", 50),
        "filters": token.get("filters") if with_characters else (),
        "n_highway": token.get("n_highway") if with_characters else 0,
        "activation": token.get("activation", "relu"),
        "n_words": len(lexicon.words),
        "word_dim": token.get("word_dim"),
    }
    lstm = {
        "cell_dim": stack.get("dim"),
        "projection_dim": stack.get("projection_dim"),
        "n_layers": stack.get("n_layers"),
        "cell_clip": stack.get("cell_clip") or None,
        "projection_clip": stack.get("proj_clip") or None,
        "residual": True,
    }
    return parse_config(
        ModelConfig, {"encoder": encoder, "lstm": lstm, "tokenizer": "whitespace"}, where
    )


def _read_lexicon(source: ModelFiles, name: str, marks: tuple[str, ...]) -> tuple[str, ...]:
    """Read one `token TAB id` per line; a line with only the id means U+3000."""
    if name not in source.names():
        raise FormatError(f"{source.where}: {name} is missing.")
    where = f"{source.where}: {name}"
    entries: dict[int, str] = {}
    try:
        lines = read_text_bytes(source, name).decode("utf-8").removesuffix("\n").split("\n")
        for line in lines:
            token, _, number = line.removesuffix("\r").rpartition("\t")
            entries[int(number)] = token or "\u3000"
    except UnicodeDecodeError as error:
        raise FormatError(f"{where} is not UTF-8 (byte {error.start}).") from None
    except ValueError:
        raise FormatError(f"{where}: {line!r} is not a token, a tab and a number.") from None
    if sorted(entries) != list(range(len(lines))):
        raise FormatError(f"{where}: the numbers are not 0 to {len(lines) - 1}, each once.")
    words = tuple(entries[i] for i in range(len(lines)))
    missing = sorted(set(marks) - set(words))
    if missing:
        raise FormatError(f"{where}: the marks {missing} are missing.")
    return words


def _read_characters(source: ModelFiles) -> tuple[str, ...]:
    """Read the characters; `<bow>` and `<eow>` are swapped, as the original put `<bow>` last."""
    swapped = {"<bow>": "<eow>", "<eow>": "<bow>"}
    return tuple(swapped.get(c, c) for c in _read_lexicon(source, "char.dic", CHARACTER_MARKS))


def _convert_encoder(
    theirs: Mapping[str, Tensor], config: ModelConfig, where: str
) -> dict[str, Tensor]:
    """Convert their names to ours; `ModelContents.check` checks the shapes."""
    tensors = dict(theirs)
    for layer, name in (("characters", "char_emb_layer"), ("words", "word_emb_layer")):
        if f"{name}.embedding.weight" in tensors:
            tensors[f"{layer}.weight"] = tensors.pop(f"{name}.embedding.weight")
    for k in range(config.encoder.n_highway):
        for part in ("weight", "bias"):
            key, n = f"highways._layers.{k}.{part}", 2 * config.encoder.n_filters
            both = tensors.pop(key, None)
            if both is None or both.shape[:1] != (n,):
                found = "is missing" if both is None else f"has shape {list(both.shape)}"
                raise FormatError(f"{where}: token_embedder.pkl: {key} {found}, expected {n} rows.")
            transform, gate = both.chunk(2)
            tensors[f"highways.{k}.transform.{part}"] = transform
            tensors[
                f"highways.{k}.gate.{part}"
            ] = -gate  # σ(−z) = 1 − σ(z), as their gate weights the input
    return {f"encoder.{name}": tensor.contiguous() for name, tensor in tensors.items()}


def _convert_stacks(
    theirs: Mapping[str, Tensor], config: ModelConfig, where: str
) -> dict[str, Tensor]:
    names = {
        "input_linearity.weight": "input_weight",
        "state_linearity.weight": "recurrent_weight",
        "state_linearity.bias": "bias",
        "state_projection.weight": "projection_weight",
    }
    tensors = {}
    for way in ("forward", "backward"):
        for layer in range(config.lstm.n_layers):
            for their_name, name in names.items():
                key = f"{way}_layer_{layer}.{their_name}"
                if key not in theirs:
                    raise FormatError(f"{where}: encoder.pkl: tensor {key} is missing.")
                tensors[f"{way}_stack.{layer}.{name}"] = theirs[key]
    return tensors
