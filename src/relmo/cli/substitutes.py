"""`relmo substitutes`: words that fit in the place of another."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from relmo.cli import arguments as arg


def substitutes(
    sentence: Annotated[str, typer.Argument(help=r'With the word in brackets: "The \[cat] sat".')],
    model: arg.Model = arg.ENGLISH,
    k: Annotated[int, typer.Option("-k", min=1, help="How many words.")] = 10,
    tokenizer: arg.Tokenizer = None,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    r"""List words that fit in the place of the marked one, best first.

    Scores are natural logarithms of probability: forward given what comes before, backward given
    what comes after, and their sum, the product of both. The share is that product's among all
    words of the model's vocabulary.

    [bold]Examples[/bold]

      relmo substitutes "The \[cat] sat on the mat ."

      relmo substitutes "She went to the \[bank] ." -m run/model -k 20 --json
    """
    from relmo.inference.model import load
    from relmo.inference.substitutes import find_substitutes
    from relmo.text.marks import parse_marked

    arg.use_threads(threads)
    loaded = load(model, options=options, tokenizer=tokenizer)
    found = find_substitutes(loaded, parse_marked(sentence, loaded.tokenize), k)
    if as_json:
        values = [{**asdict(word), "score": word.score} for word in found]
        typer.echo(json.dumps(values, ensure_ascii=False))
        return
    typer.echo("word\tforward\tbackward\tscore\tshare")
    for word in found:
        numbers = f"{word.forward:.3f}\t{word.backward:.3f}\t{word.score:.3f}\t{word.share:.4f}"
        typer.echo(f"{word.word}\t{numbers}")
