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
    from relmo.errors import ConfigError
    from relmo.files import check_writable
    from relmo.formats import WRITERS, native, read_model

    if to not in WRITERS:
        raise ConfigError(f"--to is {to!r}; choose from {', '.join(WRITERS)}.")
    if dtype not in native.DTYPES or (dtype == "float16" and to != "relmo"):
        raise ConfigError(f"--dtype is {dtype!r}; choose float32 or, in relmo's format, float16.")
    check_writable(target, directory=True)
    contents = read_model(source, options=options)
    contents.build_bilm()  # fails before anything is written if the parts do not fit together
    if dtype == "float16":
        native.write(contents, target, "float16")
    else:
        WRITERS[to](contents, target)
    typer.echo(f"Wrote {target}", err=True)
