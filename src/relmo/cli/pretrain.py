"""`relmo pretrain`: train a biLM on your own text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from relmo.cli import arguments as arg

Texts = typer.Argument(
    metavar="TEXT...",
    help="Text, by default prose: files (also .gz, .bz2, .zst), directories, patterns.",
)
LINES = "One sentence per line, or prose, which is split into sentences. Default: prose."
LANGUAGE = "Language of prose, as an ISO 639 code: en, de, zh. Default: en."
ERRORS = "Bytes that do not decode: strict stops, replace puts U+FFFD. Default: strict."
Set = Option("--set", metavar="NAME=VALUE", help="Change a setting of the preset; may be repeated.")


def pretrain(
    output: Annotated[Path, Option("-o", "--output", metavar="RUN", help="Run directory.")],
    text: Annotated[list[str] | None, Texts] = None,
    preset: Annotated[str | None, Option(help="Model sizes and recipe. Default: small.")] = None,
    valid: Annotated[list[str] | None, Option(help="Validation text; may be repeated.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Stop after this many epochs.")] = None,
    max_tokens: Annotated[int | None, Option(min=1, help="Stop after this many tokens.")] = None,
    max_minutes: Annotated[
        float | None, Option(min=0, help="Stop after this many minutes.")
    ] = None,
    init: Annotated[
        str | None, Option(metavar="MODEL", help="Start from this model's weights.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Resume the run in RUN.")] = False,
    lines: Annotated[bool | None, Option("--lines/--prose", help=LINES)] = None,
    language: Annotated[str | None, Option(metavar="CODE", help=LANGUAGE)] = None,
    encoding: Annotated[str | None, Option(help="Encoding of the text. Default: utf-8.")] = None,
    errors: Annotated[str | None, Option(help=ERRORS)] = None,
    tokenizer: arg.Tokenizer = None,
    vocabulary_size: Annotated[int | None, Option(help="Size of the softmax's vocabulary.")] = None,
    min_count: Annotated[int | None, Option(help="Leave out words rarer than this.")] = None,
    vocabulary: Annotated[Path | None, Option(help="Vocabulary file, by frequency.")] = None,
    settings: Annotated[list[str] | None, Set] = None,
    seed: Annotated[int | None, Option(min=0, max=arg.MAX_SEED, help="Random seed.")] = None,
    cache: Annotated[Path | None, Option(help="Directory of prepared text.")] = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Write TensorBoard files.")] = False,
    threads: arg.Threads = None,
) -> None:
    """Pre-train a biLM on your text. The model is written to RUN/model.

    After Ctrl-C or a crash, --resume continues the run and gives the same weights, bit for bit.

    [bold]Examples[/bold]

      relmo pretrain novels/ -o my-run --max-minutes 30

      relmo pretrain sentences.txt.gz --lines -o my-run --preset tiny --epochs 3

      relmo pretrain law/*.txt -o law-run --init small --set train.learning_rate=0.0003

      relmo pretrain -o my-run --resume --max-minutes 60

      torchrun --nproc-per-node 2 -m relmo pretrain novels/ -o my-run
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads leave the cores to others

    from relmo.pretraining import pretrain as run

    arg.check_language(lines is True, language)
    arg.use_threads(threads)
    values = {
        "data.lines": lines,
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
    outcome = run(
        output,
        text or (),
        preset=preset,
        values=values,
        settings=settings or (),
        valid=valid or (),
        vocabulary=vocabulary,
        init=init,
        resume=resume,
        cache=cache,
        tensorboard=tensorboard,
    )
    if os.environ.get("RANK", "0") == "0":  # of several processes, one talks
        typer.echo(f"{outcome.describe()}\nThe model is {output / 'model'}.", err=True)
