"""`relmo perplexity`: the perplexity of a text."""

from __future__ import annotations

import json

import typer

from relmo.cli import arguments as arg


def perplexity(
    text: arg.LineText,
    model: arg.Model = arg.ENGLISH,
    lines: arg.Lines = True,
    language: arg.Language = None,
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

      relmo perplexity novel.txt -m run/model --prose --language en

      relmo perplexity tokenised.txt -m run/model --tokenizer whitespace --json
    """
    from relmo.inference.model_source import ModelSource
    from relmo.inference.text_scores import perplexity

    arg.use_threads(threads)
    text_options = arg.build_text_options(lines, language, encoding, errors)
    measured = perplexity(text, ModelSource(model, options, tokenizer), text_options=text_options)
    values = measured.as_dict()
    shown = {k: f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" for k, v in values.items()}
    table = "\n".join(f"{name:<10} {value:>14}" for name, value in shown.items())
    typer.echo(json.dumps(values) if as_json else table)
