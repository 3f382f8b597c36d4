"""`relmo convert`: convert a model to another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relmo.cli import arguments as arg


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Model: a directory, zip, HDF5 weights or a name.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Directory to write.")],
    to: Annotated[str, typer.Option(help="Format: relmo or bilm-tf.")] = "relmo",
    dtype: Annotated[
        str, typer.Option(help="float32, or float16 (half the size; only with --to relmo).")
    ] = "float32",
    options: arg.Options = None,
) -> None:
    """Convert a model to another format. HDF5 → relmo → HDF5 gives the same bits.

    [bold]Examples[/bold]

      relmo convert elmo.zip ./my-model --to relmo

      relmo convert ./my-model ./for-allennlp --to bilm-tf

      relmo convert run/model ./to-share --dtype float16
    """
    from relmo.inference.convert import convert
    from relmo.inference.model_source import ModelSource

    convert(ModelSource(source, options), target, to=to, dtype=dtype)
    typer.echo(f"Wrote {target}", err=True)
