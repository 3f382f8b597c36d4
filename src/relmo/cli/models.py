"""`relmo models`: list the models that have a name."""

from __future__ import annotations

import json

import typer

from relmo.cli import arguments as arg


def models(as_json: arg.Json = False) -> None:
    """List the models that can be loaded by name, bundled and published, with sizes and licences.

    [bold]Examples[/bold]

      relmo models

      relmo embed sentences.txt -m small -o vectors.hdf5  # downloads once
    """
    from relmo.inference.describe import list_models

    known = list_models()
    if as_json:
        typer.echo(json.dumps(known.as_dict()))
        return
    row = "{:<14} {:>11} {:>8}  {:<11} {:<11} {}"
    typer.echo(row.format("name", "parameters", "size", "licence", "here", "trained on"))
    for model in known.models:
        here = "bundled" if model.bundled else "yes" if model.cached else "no"
        numbers = (f"{model.parameters:,}", f"{model.bytes / 1e6:,.0f} MB", model.licence)
        typer.echo(row.format(model.name, *numbers, here, model.trained_on))
    typer.echo(f"Downloads are kept in {known.directory}", err=True)
