"""`relmo perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.score import ScoredSentence

Text = Annotated[str, typer.Argument(metavar="TEXT", help="One sentence a line; - is stdin.")]


def perplexity(
    text: Text,
    model: arg.Model,
    tokenizer: arg.Tokenizer = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Measure how well a model predicts a text, left to right and right to left.

    Blank lines are left out. The average is the mean of both directions' perplexities; a sentence
    has one prediction more than tokens, that of its end (or beginning).

    [bold]Examples[/bold]

      relmo perplexity held-out.txt -m run/model

      relmo perplexity tokenised.txt -m run/model --tokenizer whitespace --json
    """
    from relmo.score import summarize

    arg.use_threads(threads)
    scored = score_lines(text, model, tokenizer, encoding, errors, options)
    found = asdict(summarize(sentence for _, sentence in scored))
    shown = {k: f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" for k, v in found.items()}
    table = "\n".join(f"{name:<10} {value:>14}" for name, value in shown.items())
    typer.echo(json.dumps(found) if as_json else table)


def score_lines(
    text: str,
    model: str,
    tokenizer: str | None,
    encoding: str,
    errors: str,
    options: Path | None,
    fit: bool = False,
) -> Iterator[tuple[str, ScoredSentence]]:
    """Each line and its scores, with a progress bar."""
    from relmo.formats import read_model
    from relmo.progress import progress
    from relmo.score import Scorer
    from relmo.text.corpus import read_lines

    n_read = 0  # bytes

    def count(n: int) -> None:
        nonlocal n_read
        n_read += n

    lines, again = tee(read_lines(text, encoding=encoding, errors=errors, advance=count))
    scorer = Scorer(read_model(model, options=options), tokenizer=tokenizer)
    size = Path(text).stat().st_size if Path(text).is_file() else 0
    with progress("Scoring", unit="words") as advance:
        for line, sentence in zip(again, scorer.score(lines, fit=fit), strict=True):
            advance(len(sentence.tokens), n_read / size if size else None)
            yield line, sentence
