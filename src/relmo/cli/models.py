"""`relmo models`: what can be had by name."""

from __future__ import annotations

import json

import typer

from relmo.cli import arguments as arg


def models(as_json: arg.Json = False) -> None:
    """List the published models that can be loaded by name, with sizes and licences.

    [bold]Examples[/bold]

      relmo models

      relmo embed sentences.txt -m small -o vectors.hdf5  # downloads once
    """
    from relmo.formats.published import PUBLISHED, cache_directory, is_cached

    if as_json:
        facts = [
            {
                "name": model.name,
                "parameters": model.n_parameters,
                "bytes": model.approximate_bytes,
                "trained_on": model.trained_on,
                "licence": model.licence,
                "cached": is_cached(name),
            }
            for name, model in PUBLISHED.items()
        ]
        typer.echo(json.dumps(facts))
        return
    row = "{:<14} {:>11} {:>8}  {:<11} {:<11} {}"
    typer.echo(row.format("name", "parameters", "size", "licence", "here", "trained on"))
    for name, model in PUBLISHED.items():
        size = f"{model.approximate_bytes / 1e6:,.0f} MB"
        here = "yes" if is_cached(name) else "no"
        numbers = (f"{model.n_parameters:,}", size, model.licence, here)
        typer.echo(row.format(name, *numbers, model.trained_on))
    typer.echo(f"Downloads are kept in {cache_directory()}", err=True)
