"""`relmo models`: list the models that have a name."""

from __future__ import annotations

import json
from typing import Any

import typer

from relmo.cli import arguments as arg


def models(as_json: arg.Json = False) -> None:
    """List the models that can be loaded by name, bundled and published, with sizes and licences.

    [bold]Examples[/bold]

      relmo models

      relmo embed sentences.txt -m small -o vectors.hdf5  # downloads once
    """
    from relmo.formats.bundled import BUNDLED, BundledModel
    from relmo.formats.published import PUBLISHED, PublishedModel, cache_directory, is_cached

    known: dict[str, BundledModel | PublishedModel] = {**BUNDLED, **PUBLISHED}
    facts: list[dict[str, Any]] = [
        {
            "name": name,
            "parameters": model.n_parameters,
            "bytes": model.approximate_bytes if isinstance(model, PublishedModel) else model.bytes,
            "trained_on": model.trained_on,
            "licence": model.licence,
            "bundled": name in BUNDLED,
            "cached": name in PUBLISHED and is_cached(name),
        }
        for name, model in known.items()
    ]
    if as_json:
        typer.echo(json.dumps(facts))
        return
    row = "{:<14} {:>11} {:>8}  {:<11} {:<11} {}"
    typer.echo(row.format("name", "parameters", "size", "licence", "here", "trained on"))
    for fact in facts:
        here = "bundled" if fact["bundled"] else "yes" if fact["cached"] else "no"
        numbers = (f"{fact['parameters']:,}", f"{fact['bytes'] / 1e6:,.0f} MB", fact["licence"])
        typer.echo(row.format(fact["name"], *numbers, here, fact["trained_on"]))
    typer.echo(f"Downloads are kept in {cache_directory()}", err=True)
