"""`relmo perplexity`: the perplexity of a text."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from relmo.cli import arguments as arg
from relmo.cli.scoring import Text, score_lines


def perplexity(
    text: Text,
    model: arg.Model = arg.ENGLISH,
    prose: arg.Prose = None,
    tokenizer: arg.Tokenizer = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Compute the perplexity of a text, forward (left to right) and backward (right to left).

    The average is the mean of the two perplexities. Each direction predicts all tokens of a
    sentence and its boundary (end or beginning). Blank lines are skipped.

    [bold]Examples[/bold]

      relmo perplexity sentences.txt

      relmo perplexity novel.txt -m run/model --prose en

      relmo perplexity tokenised.txt -m run/model --tokenizer whitespace --json
    """
    from relmo.inference.scoring import summarize

    arg.use_threads(threads)
    scored = score_lines(text, model, prose, tokenizer, encoding, errors, options)
    found = asdict(summarize(sentence for _, sentence in scored))
    shown = {k: f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" for k, v in found.items()}
    table = "\n".join(f"{name:<10} {value:>14}" for name, value in shown.items())
    typer.echo(json.dumps(found) if as_json else table)
