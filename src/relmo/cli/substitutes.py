"""`relmo substitutes`: words that fit in place of another."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from relmo.cli import arguments as arg


def substitutes(
    sentence: Annotated[
        str, typer.Argument(help=r'Sentence with one word in brackets: "The \[cat] sat".')
    ],
    model: arg.Model = arg.ENGLISH,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of words.")] = 10,
    tokenizer: arg.Tokenizer = None,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    r"""List words that fit in place of the marked one, best first.

    Forward is the log-probability (natural logarithm) given the words before, backward given the
    words after, and score their sum. The share is the probability by score: exp(score), normalised
    over the vocabulary.

    [bold]Examples[/bold]

      relmo substitutes "The \[cat] sat on the mat ."

      relmo substitutes "She went to the \[bank] ." -m run/model -k 20 --json
    """
    from relmo.inference.model_source import ModelSource
    from relmo.inference.substitutes import substitutes

    arg.use_threads(threads)
    found = substitutes(sentence, ModelSource(model, options, tokenizer), k=k)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), ensure_ascii=False))
        return
    typer.echo("word\tforward\tbackward\tscore\tshare")
    for word in found.substitutes:
        numbers = f"{word.forward:.3f}\t{word.backward:.3f}\t{word.score:.3f}\t{word.share:.4f}"
        typer.echo(f"{word.word}\t{numbers}")
