"""`relmo info`: describe a model or the machine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from relmo.cli import arguments as arg
from relmo.errors import ConfigError


def info(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model: a directory, zip, HDF5 weights or a name."),
    ] = None,
    options: arg.Options = None,
    system: Annotated[
        bool, typer.Option("--system", help="Describe this machine instead of a model.")
    ] = False,
    as_json: arg.Json = False,
) -> None:
    """Describe a model (format, sizes, layers, softmax), or the machine that relmo runs on.

    [bold]Examples[/bold]

      relmo info ./my-model

      relmo info elmo_weights.hdf5 --options elmo_options.json --json

      relmo info --system
    """
    if (model is None) != system:
        raise ConfigError("Give either a model or --system: relmo info MODEL, relmo info --system.")
    from relmo.inference.describe import describe_model, describe_system
    from relmo.inference.model_source import ModelSource

    found = describe_model(ModelSource(model, options)) if model else describe_system()
    facts = found.as_dict()
    lines = [f"{name.replace('_', ' '):<16} {_shown(value)}" for name, value in facts.items()]
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(lines))


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
