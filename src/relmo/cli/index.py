"""`relmo index`: build and search an index of the words of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from relmo.cli import arguments as arg
from relmo.cli.occurrences import show, show_recall

index = typer.Typer(
    help=r"""Build an index of the words of a text, and search it for nearest occurrences.

    [bold]Examples[/bold]

      relmo index build novels/ -o novels.index

      relmo index search "Live in the \[present], not the past." -i novels.index
    """,
    no_args_is_help=True,
)
At = Annotated[Path, Option("-i", "--index", help="Directory that `relmo index build` wrote.")]
K = Annotated[int, Option("-k", min=1, help="Number of occurrences.")]
TEXT = "Files or directories of text, or vector files that `relmo embed` wrote."


@index.command()
def build(
    text: Annotated[list[str], Argument(metavar="TEXT...", help=TEXT)],
    output: Annotated[Path, Option("-o", "--output", metavar="DIR", help="New directory.")],
    model: arg.Model = arg.ENGLISH,
    layer: arg.Layer = "average",
    lines: arg.Lines = False,
    language: arg.Language = "en",
    stop_words: Annotated[
        Path | None, Option(help="File of words to leave out, one per line.")
    ] = None,
    approximate: Annotated[
        bool, Option("--approximate", help="Add a faiss index, for millions of words.")
    ] = False,
    tokenizer: arg.Tokenizer = None,
    options: arg.Options = None,
) -> None:
    """Build an index: one vector per word of the text, in context."""
    from relmo.inference.model import load
    from relmo.text.corpus import find_texts, read_lines
    from relmo.vectors.neighbours import index_files

    stopped = [line.strip().lower() for line in read_lines(stop_words)] if stop_words else []
    chosen: Any = int(layer) if layer.isdecimal() else layer  # checked by the library
    read: Any = {"lines": lines, "language": language}
    kept: Any = {"layers": chosen, "stop_words": stopped, "approximate": approximate}
    loaded = load(model, options=options, tokenizer=tokenizer)
    index_files(output, loaded, find_texts(text), **read, **kept)


@index.command()
def search(
    sentence: Annotated[
        str, Argument(help=r'Sentence with one word in brackets: "The \[cat] sat".')
    ],
    index: At,
    model: arg.Model = arg.ENGLISH,
    k: K = 10,
    exact: Annotated[bool, Option("--exact", help="Search exactly, without faiss.")] = False,
    options: arg.Options = None,
    as_json: arg.Json = False,
) -> None:
    """List the nearest occurrences of a word in its sentence."""
    show(sentence, model, index, k, options, as_json, exact)


@index.command()
def recall(
    index: At,
    k: K = 10,
    queries: Annotated[
        int, Option(min=1, help="Number of words of the index to search for.")
    ] = 200,
    as_json: arg.Json = False,
) -> None:
    """Measure the recall of approximate search: the share of nearest occurrences it finds."""
    show_recall(index, k, queries, as_json)
