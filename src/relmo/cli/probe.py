"""`relmo probe`: probing tasks for the layers of a model."""

from __future__ import annotations

import typer

from relmo.cli.probe_pos import pos
from relmo.cli.probe_wic import wic

probe = typer.Typer(
    help="""Probe the layers of a model: part-of-speech tagging, and word senses in context.

    [bold]Examples[/bold]

      relmo probe pos --train train.conllu --dev dev.conllu --test test.conllu -m my-model

      relmo probe wic --train WiC/train --dev WiC/dev --test WiC/test -m my-model
    """,
    no_args_is_help=True,
)
for verb in (pos, wic):
    probe.command()(verb)
