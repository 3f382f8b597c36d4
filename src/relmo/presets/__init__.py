"""Configurations as TOML: presets by name, single values, what a run was made with."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import tomli_w

from relmo.config import PretrainConfig, parse_config
from relmo.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def list_presets() -> list[str]:
    """The names that `read_preset` knows.

    Example:
        >>> from relmo.presets import list_presets
        >>> list_presets()
        ['chinese', 'medium', 'original', 'small', 'tiny']
    """
    files = resources.files("relmo.presets").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def read_preset(name: str) -> PretrainConfig:
    """The sizes and the recipe of a published or recommended model.

    Example:
        >>> from relmo.presets import read_preset
        >>> read_preset("original").model.lstm.cell_dim
        4096
    """
    if name not in list_presets():
        raise ConfigError(f"There is no preset {name!r}. Choose from: {', '.join(list_presets())}.")
    text = (resources.files("relmo.presets") / f"{name}.toml").read_text(encoding="utf-8")
    return parse_toml(text, f"preset {name}")


def parse_toml(text: str, where: str) -> PretrainConfig:
    """Check a preset, or what `to_toml` wrote; `where` names it in the error."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}.") from None
    return parse_config(PretrainConfig, values, where)


def to_toml(config: PretrainConfig) -> str:
    """Every value, whether it was ever chosen or not."""
    return tomli_w.dumps(_without_null(config.model_dump(mode="json")))


def with_settings(config: PretrainConfig, settings: Sequence[str]) -> PretrainConfig:
    """The same with some values replaced, each written as "model.lstm.cell_dim=512".

    Example:
        >>> from relmo.presets import read_preset, with_settings
        >>> with_settings(read_preset("tiny"), ["train.epochs=3"]).train.epochs
        3
    """
    values = config.model_dump(mode="json")
    for setting in settings:
        path, equals, text = setting.partition("=")
        *tables, key = path.strip().split(".")
        place: Any = values
        for table in tables:
            place = place.get(table) if isinstance(place, dict) else None
        if not equals or not isinstance(place, dict) or isinstance(place.get(key), dict):
            raise ConfigError(
                f"The setting {setting!r} names no value; write it as table.name=value, for "
                "example model.lstm.cell_dim=512 or train.learning_rate=0.002.",
                settings=["settings"],
            )
        place[key] = _parse_value(text.strip())
    return parse_config(PretrainConfig, values, "The changed configuration", settings=["settings"])


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a string without quotes


def _without_null(values: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null, so it is written "none"."""
    return {
        key: _without_null(value) if isinstance(value, dict) else "none" if value is None else value
        for key, value in values.items()
    }
