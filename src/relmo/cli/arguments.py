"""Arguments that mean the same in every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A model directory or zip of any known format, HDF5 weights, or a published name.",
    ),
]
OptionsOption = Annotated[
    Path | None,
    typer.Option("--options", help="The options.json of HDF5 weights, where they need naming."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Cores to use; all of them by default.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Where random numbers start.")]


def use_threads(threads: int | None) -> None:
    """Limit PyTorch to so many cores."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
