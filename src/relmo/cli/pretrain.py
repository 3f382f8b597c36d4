"""`relmo pretrain`: text in, a model of your own out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from relmo.cli import arguments as arg

Texts = typer.Argument(metavar="TEXT...", help="Files (.gz, .bz2, .zst), directories, patterns.")
Set = Option("--set", metavar="NAME=VALUE", help="Any value of the preset; may be repeated.")


def pretrain(
    output: Annotated[Path, Option("-o", "--output", metavar="RUN", help="The run directory.")],
    text: Annotated[list[str] | None, Texts] = None,
    preset: Annotated[str | None, Option(help="Sizes and recipe; small by default.")] = None,
    valid: Annotated[list[str] | None, Option(help="To validate on; may be repeated.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Stop after so many times the text.")] = None,
    max_tokens: Annotated[int | None, Option(min=1, help="Stop after so many tokens.")] = None,
    max_minutes: Annotated[float | None, Option(min=0, help="Stop after so long.")] = None,
    init: Annotated[str | None, Option(metavar="MODEL", help="Go on from a model.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in RUN.")] = False,
    lines: arg.Lines = False,
    language: Annotated[str | None, Option(help="Of prose: en by default.")] = None,
    encoding: Annotated[str | None, Option(help="Of the text: utf-8 by default.")] = None,
    errors: Annotated[str | None, Option(help="strict, or replace what does not decode.")] = None,
    tokenizer: arg.Tokenizer = None,
    vocabulary_size: Annotated[int | None, Option(help="Words that can be predicted.")] = None,
    min_count: Annotated[int | None, Option(help="Leave rarer words out of them.")] = None,
    vocabulary: Annotated[Path | None, Option(help="A file of them, by frequency.")] = None,
    settings: Annotated[list[str] | None, Set] = None,
    seed: Annotated[int | None, Option(help="Where random numbers start.")] = None,
    cache: Annotated[Path | None, Option(help="Where prepared text is kept.")] = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Write its files too.")] = False,
    threads: arg.Threads = None,
) -> None:
    """Train a biLM on your text; RUN/model is then a model like any other.

    Stopped by Ctrl-C or killed, a run goes on with --resume as if nothing had happened.

    [bold]Examples[/bold]

      relmo pretrain novels/ -o my-run --max-minutes 30

      relmo pretrain sentences.txt.gz --lines -o my-run --preset tiny --epochs 3

      relmo pretrain law/*.txt -o law-run --init small --set train.learning_rate=0.0003

      relmo pretrain -o my-run --resume --max-minutes 60

      torchrun --nproc-per-node 2 -m relmo pretrain novels/ -o my-run
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads leave the cores to others

    from relmo.pretrain import pretrain as run

    arg.use_threads(threads)
    values = {
        "data.lines": lines or None,
        "data.language": language,
        "data.encoding": encoding,
        "data.errors": errors,
        "data.vocabulary_size": vocabulary_size,
        "data.min_count": min_count,
        "model.tokenizer": tokenizer,
        "train.epochs": epochs,
        "train.max_tokens": max_tokens,
        "train.max_minutes": max_minutes,
        "train.seed": seed,
    }
    named: dict[str, Any] = {"vocabulary": vocabulary, "init": init, "cache": cache}
    named |= {"valid": valid or (), "settings": settings or (), "preset": preset, "resume": resume}
    outcome = run(output, text or (), values=values, tensorboard=tensorboard, **named)
    if os.environ.get("RANK", "0") == "0":  # of several processes, one talks
        typer.echo(f"{outcome.describe()}\nThe model is {output / 'model'}.", err=True)
