"""`relmo info`: what a model is."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from relmo.cli.arguments import JsonOption, OptionsOption


def info(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A directory, zip, HDF5 weights or a name.")
    ],
    options: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what a model is: format, sizes, layers, characters, softmax.

    [bold]Examples[/bold]

      relmo info ./my-model

      relmo info elmo_weights.hdf5 --options elmo_options.json --json
    """
    from relmo.formats import read_model

    contents = read_model(model, options=options)
    contents.build_bilm()  # so that weights that do not fit are told, not described
    encoder, lstm = contents.config.encoder, contents.config.lstm
    facts: dict[str, Any] = {
        "origin": contents.origin,
        "parameters": contents.n_parameters,
        "layers": lstm.n_layers,
        "output_dim": contents.config.output_dim,
        "cell_dim": lstm.cell_dim,
        "residual": lstm.residual,
        "cell_clip": lstm.cell_clip,
        "projection_clip": lstm.projection_clip,
        "scheme": encoder.scheme,
        "characters": encoder.n_characters,
        "max_characters": encoder.max_characters,
        "filters": [list(f) for f in encoder.filters],
        "highway_layers": encoder.n_highway,
        "words": encoder.n_words,
        "tokenizer": contents.config.tokenizer,
        "vocabulary": None if contents.vocabulary is None else len(contents.vocabulary),
        "softmax": None if contents.softmax is None else len(contents.softmax.bias),
    }
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<16} {_shown(value)}")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
