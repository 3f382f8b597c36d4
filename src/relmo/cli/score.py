"""`relmo score`: log-probabilities of tokens and sentences, and the least expected words."""

from __future__ import annotations

from typing import Annotated

import typer

from relmo.cli import arguments as arg
from relmo.cli.scored import as_json as show_json
from relmo.cli.scored import as_table, as_text
from relmo.cli.scoring import Text, score_lines


def score(
    text: Text,
    model: arg.Model = arg.ENGLISH,
    least: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Mark the K least expected words of each sentence."),
    ] = None,
    prose: arg.Prose = None,
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

      relmo score letter.txt --prose en --least 3

      echo "The cat sat ." | relmo score - --json
    """
    arg.use_threads(threads)
    how = (prose, tokenizer, encoding, errors, options)
    scored = score_lines(text, model, *how, fit=least is not None)
    for number, (line, sentence) in enumerate(scored, start=1):
        if as_json:
            typer.echo(show_json(number, sentence, least))
        elif least is not None:
            typer.echo(as_text(line, sentence, least))
        else:
            typer.echo(as_table(number, sentence))
