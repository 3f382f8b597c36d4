"""`relmo info`: describe a model or the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from relmo import __version__
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
    facts = _system() if model is None else _facts(model, options)
    lines = [f"{name.replace('_', ' '):<16} {_shown(value)}" for name, value in facts.items()]
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(lines))


def _system() -> dict[str, Any]:
    import torch

    from relmo.machine import describe_machine
    from relmo.model import int8, kernels

    machine = describe_machine()
    return {
        "relmo": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": machine.processor,
        "instruction_sets": " ".join(machine.instruction_sets),
        "torch_uses": torch.backends.cpu.get_cpu_capability(),
        "lstm_cell": kernels.description,
        "int8": int8.describe(),
    }


def _facts(model: str, options: Path | None) -> dict[str, Any]:
    from relmo.formats import read_model

    contents = read_model(model, options=options)
    encoder, lstm = contents.config.encoder, contents.config.lstm
    return {
        "origin": contents.origin,
        "parameters": contents.n_parameters,
        "layers": lstm.n_layers,
        "output_dim": contents.config.output_dim,
        **lstm.model_dump(mode="json", exclude={"n_layers"}),
        **encoder.model_dump(mode="json", exclude={"projection"}),
        "tokenizer": contents.config.tokenizer,
        "vocabulary": None if contents.vocabulary is None else len(contents.vocabulary),
        "softmax": None if contents.softmax is None else len(contents.softmax.bias),
        **contents.facts,
    }


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
