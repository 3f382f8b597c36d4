"""relmo's own model directory.

config.json         format_version, the model's configuration, its origin
model.safetensors   parameters under the names that `BiLm` gives them; softmax.*, remainder.*
vocabulary.txt      the words of the softmax, where there is one
lexicon.json        characters and words, for models of that scheme
README.md           the model card
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from relmo import __version__
from relmo.config import ModelConfig, parse_config
from relmo.errors import FormatError
from relmo.files import directory_written_atomically
from relmo.formats.contents import ModelContents, Softmax
from relmo.formats.model_files import (
    MAX_TEXT_BYTES,
    MAX_WEIGHTS_BYTES,
    ModelFiles,
    find_json,
    read_bytes,
)
from relmo.text.lexicon import Lexicon
from relmo.text.vocabulary import Vocabulary, parse_vocabulary

FORMAT_VERSION = 1
DTYPES = {"float32": torch.float32, "float16": torch.float16}


def recognizes(source: ModelFiles) -> bool:
    """Whether there is a configuration with a format version."""
    return bool(find_json(source, "format_version", "model"))


def read(source: ModelFiles) -> ModelContents:
    """Read a model directory; tensors stay on disk until they are needed."""
    configs = find_json(source, "format_version", "model")
    if len(configs) != 1:
        raise FormatError(f"{source.where}: expected one configuration, found {sorted(configs)}.")
    name, config = next(iter(configs.items()))
    version = config["format_version"]
    if version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        raise FormatError(
            f"{source.where}: {name} has format_version {version!r}; this relmo ({__version__}) "
            f"reads version {FORMAT_VERSION}. "
            + ("Update relmo." if newer else "The file is damaged.")
        )
    model = parse_config(ModelConfig, config["model"], f"{source.where}: {name}")
    tensors = _read_tensors(source)
    groups: dict[str, dict[str, Tensor]] = {"softmax.": {}, "remainder.": {}, "": {}}
    for key, tensor in tensors.items():
        prefix = next(p for p in groups if key.startswith(p))
        groups[prefix][key.removeprefix(prefix)] = tensor
    return ModelContents(
        config=model,
        tensors=groups[""],
        origin=str(config.get("origin", "relmo")),
        lexicon=_read_lexicon(source) if model.encoder.scheme == "lexicon" else None,
        vocabulary=_read_vocabulary(source),
        softmax=_softmax(groups["softmax."], source.where),
        remainders=groups["remainder."],
        facts=_strings(config.get("facts", {})),
    )


def write(
    contents: ModelContents, directory: Path, dtype: Literal["float32", "float16"] = "float32"
) -> None:
    """Write a model directory atomically."""
    tensors = dict(contents.tensors)
    if contents.softmax is not None:
        tensors["softmax.weight"] = contents.softmax.weight
        tensors["softmax.bias"] = contents.softmax.bias
    tensors = {name: t.to(DTYPES[dtype]).contiguous() for name, t in tensors.items()}
    if dtype == "float32":
        tensors |= {f"remainder.{name}": t for name, t in contents.remainders.items()}
    config = {
        "format_version": FORMAT_VERSION,
        "relmo_version": __version__,
        "origin": contents.origin,
        "model": contents.config.model_dump(mode="json"),
        "facts": dict(contents.facts),
    }
    with directory_written_atomically(directory) as folder:
        _write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
        safetensors.torch.save_file(tensors, folder / "model.safetensors")
        if contents.vocabulary is not None:
            _write_text(folder / "vocabulary.txt", contents.vocabulary.to_text())
        if contents.lexicon is not None:
            lexicon = {
                "characters": contents.lexicon.characters,
                "words": contents.lexicon.words,
            }
            _write_text(folder / "lexicon.json", json.dumps(lexicon, ensure_ascii=False) + "\n")
        _write_text(folder / "README.md", _model_card(contents, directory.name))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _read_tensors(source: ModelFiles) -> dict[str, Tensor]:
    name = "model.safetensors"
    if name not in source.names():
        raise FormatError(f"{source.where}: {name} is missing.")
    path = source.path(name)
    try:
        if path is not None:
            return safetensors.torch.load_file(path)  # mapped, not copied
        return safetensors.torch.load(read_bytes(source, name, MAX_WEIGHTS_BYTES))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FormatError(
            f"{source.where}: {name} is damaged ({error}). Download it again."
        ) from None


def _read_vocabulary(source: ModelFiles) -> Vocabulary | None:
    name = "vocabulary.txt"
    if name not in source.names():
        return None
    return parse_vocabulary(read_bytes(source, name, MAX_TEXT_BYTES), f"{source.where}: {name}")


def _strings(facts: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}


def _read_lexicon(source: ModelFiles) -> Lexicon:
    name = "lexicon.json"
    if name not in source.names():
        raise FormatError(f"{source.where}: {name} is missing.")
    try:
        value: Any = json.loads(read_bytes(source, name, MAX_TEXT_BYTES))
        lists = [value[key] for key in ("characters", "words")]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise FormatError(f"{source.where}: {name} is damaged ({error!r}).") from None
    if not all(isinstance(v, list) and all(isinstance(w, str) for w in v) for v in lists):
        raise FormatError(f"{source.where}: {name} must hold two lists of strings.")
    return Lexicon(tuple(lists[0]), tuple(lists[1]))


def _softmax(tensors: dict[str, Tensor], where: str) -> Softmax | None:
    if not tensors:
        return None
    if sorted(tensors) != ["bias", "weight"]:
        raise FormatError(f"{where}: a softmax has a weight and a bias, found {sorted(tensors)}.")
    return Softmax(tensors["weight"].float(), tensors["bias"].float())


def _model_card(contents: ModelContents, name: str) -> str:
    config, lstm = contents.config, contents.config.lstm
    softmax = f"{len(contents.softmax.bias):,} words" if contents.softmax is not None else "none"
    facts = "".join(
        f"| {name} | {' '.join(fact.split())} |\n" for name, fact in contents.facts.items()
    )
    return f"""# {name}

An ELMo bidirectional language model in relmo's format.

| | |
|---|---|
| origin | {contents.origin} |
| parameters | {contents.n_parameters:,} |
| layers | {lstm.n_layers} per direction, cell {lstm.cell_dim}, output {config.output_dim} |
| characters | {config.encoder.scheme}, at most {config.encoder.max_characters} per token |
| softmax | {softmax} |
| tokenizer | {config.tokenizer} |
{facts}
```python
import relmo

model = relmo.load("{name}")
vectors = model.embed(["A sentence in this model's language ."])
```
"""
