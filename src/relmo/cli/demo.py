"""`relmo demo`: a tour of relmo, offline, in a minute."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

from typer import Option

from relmo.cli import arguments as arg


def demo(
    model: arg.Model = arg.ENGLISH,
    seconds: Annotated[
        float, Option(min=0, max=3600, help="Seconds to train a tiny model; 0 skips it.")
    ] = 30.0,
    seed: arg.Seed = 0,
    threads: arg.Threads = None,
) -> None:
    """Show what a model of English knows about words in context, and train a tiny model.

    The tour shows word senses, nearest occurrences, substitutes and unexpected words. Each step
    prints the command that does the same with your own words.

    [bold]Examples[/bold]

      relmo demo

      relmo demo -m run/model --seconds 0
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads leave the cores to others

    from rich.console import Console

    from relmo.demo import tell

    arg.use_threads(threads)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a model's words may be in any script
        sys.stdout.reconfigure(errors="replace")
    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(color_system=None if plain else "auto", highlight=False, soft_wrap=True)
    for line in tell(model, seconds=seconds, seed=seed, encoding=console.encoding):
        console.print(line)
