"""`relmo score`: log-probabilities of tokens and sentences, and the least expected words."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.inference.text_scores import ScoredLine


def score(
    text: arg.LineText,
    model: arg.Model = arg.ENGLISH,
    least: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Mark the K least expected words of each sentence."),
    ] = None,
    lines: arg.Lines = True,
    language: arg.Language = None,
    tokenizer: arg.Tokenizer = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Print the log-probability of every token and sentence, forward and backward.

    The forward direction also predicts the end of a sentence, the backward direction its
    beginning. Tokens outside the vocabulary are scored as <UNK>, and marked. The output is a
    tab-separated table, or one JSON object per line.

    With --least, the text itself is printed with its least expected words marked: those that both
    directions together make least probable, compared with their probability in any text.

    [bold]Examples[/bold]

      relmo score sentences.txt -m run/model

      relmo score letter.txt --prose --least 3

      echo "The cat sat ." | relmo score - --json
    """
    from relmo.inference.model_source import ModelSource
    from relmo.inference.text_scores import score_file

    arg.use_threads(threads)
    source = ModelSource(model, options, tokenizer)
    text_options = arg.build_text_options(lines, language, encoding, errors)
    n_tokens = 0
    for line in score_file(text, source, least=least, text_options=text_options):
        n_tokens += len(line.sentence.tokens)
        if as_json:
            typer.echo(json.dumps(line.as_dict(), ensure_ascii=False))
        elif least is not None:
            typer.echo(mark_words(line))
        else:
            typer.echo(_table(line))
    if not n_tokens:
        arg.warn_of_no_words(text)


def mark_words(line: ScoredLine) -> str:
    """The line with its least expected tokens marked: in colour on a terminal, else in brackets."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    parts, end = [], 0
    for place, token in enumerate(line.sentence.tokens):
        start = line.text.index(token, end)  # tokens come in order, and as they are written
        parts.append(line.text[end:start])
        end = start + len(token)
        if place in (line.least or ()):
            token = typer.style(token, fg="red", bold=True) if colour else f"[{token}]"
        parts.append(token)
    return "".join([*parts, line.text[end:]])


def _table(line: ScoredLine) -> str:
    """One row per token, then the sentence's boundaries, sum and perplexity."""
    sentence, values = line.sentence, line.as_dict()
    rows = [f"line {line.line}\tforward\tbackward"]
    columns = (sentence.tokens, sentence.forward, sentence.backward, sentence.unknown)
    for token, forward, backward, unknown in zip(*columns, strict=False):
        rows.append(f"{token}\t{forward:.4f}\t{backward:.4f}" + "\tunknown" * bool(unknown))
    if sentence.tokens:
        total, perplexity = values["log_probability"], values["perplexity"]
        rows += [
            f"</S>\t{sentence.forward[-1]:.4f}",
            f"<S>\t\t{sentence.backward[-1]:.4f}",
            f"sum\t{total['forward']:.4f}\t{total['backward']:.4f}",
            f"perplexity\t{perplexity['forward']:.2f}\t{perplexity['backward']:.2f}",
        ]
    return "\n".join([*rows, ""])
