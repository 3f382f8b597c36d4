"""`relmo senses`: cluster the occurrences of a word by sense."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import set_cell_size
from typer import Option

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.analysis.senses import Senses

PICTURES = "Picture to write: .png, .svg or .html; may be repeated."
COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan")  # much as in the pictures


def senses(
    words: Annotated[
        list[str], typer.Argument(metavar="WORD...", help="The word, or several forms of it.")
    ],
    corpus: Annotated[list[str], Option(metavar="TEXT", help=arg.CORPUS)],
    model: arg.Model = arg.ENGLISH,
    output: Annotated[list[Path] | None, Option("-o", "--output", help=PICTURES)] = None,
    n_senses: Annotated[
        int | None, Option("-n", "--senses", min=1, help="Number of senses.")
    ] = None,
    limit: Annotated[int, Option("--max", min=4, help="Most occurrences to cluster.")] = 1000,
    k: Annotated[int, Option("-k", min=1, help="Examples per sense.")] = 3,
    layers: arg.Layers = "lstm",
    lines: arg.Lines = False,
    language: arg.Language = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    tokenizer: arg.Tokenizer = None,
    seed: arg.Seed = 0,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
    layer: arg.OldLayer = None,
) -> None:
    """Cluster the occurrences of a word by sense, and draw them.

    Without -n, the number of clusters is chosen from the data; it may be one.

    [bold]Examples[/bold]

      relmo senses present --corpus novels/ -o present.png -o present.html

      relmo senses watch watches -m run/model --corpus novels/ -n 2 --json
    """
    from relmo.analysis.senses import SenseOptions, find_senses
    from relmo.inference.model_source import ModelSource

    arg.use_threads(threads)
    found = find_senses(
        words,
        corpus,
        ModelSource(model, options, tokenizer),
        options=SenseOptions(arg.parse_layer(layers, layer), n_senses, limit, seed),
        text_options=arg.build_text_options(lines, language, encoding, errors),
        pictures=output or (),
    )
    shown = json.dumps(found.as_dict(), ensure_ascii=False) if as_json else _table(found, k)
    typer.echo(shown, color=False if os.environ.get("NO_COLOR") else None)


def _table(found: Senses, k: int) -> str:
    rows = [f"{typer.style(', '.join(found.words), bold=True)}: {found.summary}"]
    for number, sense in enumerate(found.senses):
        colour, share = COLOURS[number % 6], len(sense.members) / len(found.occurrences)
        rows += ["", typer.style(f"{number + 1} {share:4.0%}  {', '.join(sense.words)}", fg=colour)]
        for example in found.examples(sense, k):
            before, word, after = found.occurrences[example].snippet(36)
            aligned = set_cell_size(before[::-1], 38)[::-1]
            rows.append(f"{aligned}{typer.style(f'[{word}]', fg=colour)}{after}")
    return "\n".join(rows)
