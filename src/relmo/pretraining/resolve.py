"""Resolving the configuration and inputs of a run: presets, changes, the run to resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from relmo.config import PretrainConfig
from relmo.errors import ConfigError, DataError
from relmo.formats import ModelContents
from relmo.presets import parse_toml, read_preset, with_settings
from relmo.text.reading import TextSource, list_texts

DEFAULT_PRESET = "small"


@dataclass(frozen=True)
class Inputs:
    """What a run is given beside its configuration.

    Attributes:
        texts: files, directories, patterns, or "-".
        valid: the same of text to validate on; some of the corpus is held out when there is none.
        vocabulary: a file of words to use instead of the corpus's own most frequent ones.
        init: a model to fine-tune, as `relmo.load` takes it.
    """

    texts: tuple[str, ...]
    valid: tuple[str, ...] = ()
    vocabulary: str | None = None
    init: str | None = None


def resolve_config(
    preset: str | None,
    values: Mapping[str, Any],
    settings: Sequence[str],
    *,
    init: ModelContents | None = None,
    resumed: Path | None = None,
) -> PretrainConfig:
    """A preset, or the configuration of the run to resume, with some values replaced.

    Args:
        preset: its name; `DEFAULT_PRESET` when None.
        values: by name, such as "train.epochs"; None leaves one as it is.
        settings: more of them, as "train.epochs=3".
        init: the model to fine-tune, whose sizes the run takes over.
        resumed: config.toml of the run to resume.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if {"train.max_tokens", "train.max_minutes"} & given.keys() and "train.epochs" not in given:
        given["train.epochs"] = "none"
    if resumed is None:
        config = read_preset(preset or DEFAULT_PRESET)
    elif preset is not None:
        raise ConfigError(
            f"A run is resumed with its own settings, but preset {preset} was given: leave it out.",
            settings=["preset"],
        )
    else:
        config = parse_toml(_read(resumed), str(resumed))
    if init is not None and resumed is None:
        config = config.model_copy(update={"model": init.config})
    chosen = with_settings(
        config, [*(f"{name}={json.dumps(value)}" for name, value in given.items()), *settings]
    )
    if init is not None and (chosen.model.encoder, chosen.model.lstm) != (
        init.config.encoder,
        init.config.lstm,
    ):
        raise ConfigError(
            "A model to fine-tune has its sizes: leave changes of model.… out.",
            settings=["settings"],
        )
    return chosen


def resolve_inputs(
    texts: TextSource,
    valid: TextSource,
    vocabulary: str | Path | None,
    init: str | Path | None,
) -> Inputs:
    """With paths that mean the same from everywhere."""

    def absolute(name: str | Path) -> str:
        return str(name) if name == "-" else str(Path(name).absolute())

    init = absolute(init) if init is not None and Path(init).exists() else init
    return Inputs(
        tuple(map(absolute, list_texts(texts))),
        tuple(map(absolute, list_texts(valid))),
        None if vocabulary is None else absolute(vocabulary),
        None if init is None else str(init),
    )


def resolve_resumed_inputs(given: Inputs, before: Mapping[str, Any]) -> Inputs:
    """What a run began with, where nothing else is said; text is compared by its content later."""
    for name in ("vocabulary", "init"):
        if getattr(given, name) not in (None, before.get(name)):
            raise ConfigError(
                f"The run began with {name} {before.get(name) or 'none'}: leave it out.",
                settings=[name],
            )
    same = Inputs(
        given.texts or tuple(before["texts"]),
        given.valid or tuple(before["valid"]),
        before.get("vocabulary"),
        before.get("init"),
    )
    if "-" in (*same.texts, *same.valid) and "-" not in (*given.texts, *given.valid):
        raise ConfigError("The run read standard input: give - again, and the same text there.")
    return same


def read_inputs(path: Path) -> dict[str, Any]:
    """What a run was given when it began (`inputs.json`)."""
    try:
        found = json.loads(_read(path))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}). Start a new run.") from None
    lists = [found.get(name) for name in ("texts", "valid")] if isinstance(found, dict) else [None]
    if not all(isinstance(v, list) and all(isinstance(t, str) for t in v) for v in lists):
        raise DataError(f"{path} is damaged: it names no texts. Start a new run.")
    return cast(dict[str, Any], found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"There is no run to resume: cannot read {path} ({error.strerror}). Start a new one.",
            settings=["resume"],
        ) from None
