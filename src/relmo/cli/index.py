"""`relmo index`: occurrences of words, written once and searched often."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from relmo.cli import arguments as arg
from relmo.cli.occurrences import show, show_recall

index = typer.Typer(
    help=r"""Write an index of the words of a text, and find the nearest occurrences in it.

    [bold]Examples[/bold]

      relmo index build novels/ -o novels.index

      relmo index search "Live in the \[present], not the past." -i novels.index
    """,
    no_args_is_help=True,
)
At = Annotated[Path, Option("-i", "--index", help="What `relmo index build` wrote.")]
K = Annotated[int, Option("-k", min=1, help="How many.")]
TEXT = "Files or directories; or files of vectors that `relmo embed` wrote."


@index.command()
def build(
    text: Annotated[list[str], Argument(metavar="TEXT...", help=TEXT)],
    output: Annotated[Path, Option("-o", "--output", metavar="DIR", help="A new directory.")],
    model: arg.Model = arg.ENGLISH,
    layer: arg.Layer = "average",
    lines: arg.Lines = False,
    language: arg.Language = "en",
    stop_words: Annotated[Path | None, Option(help="Words to leave out, one a line.")] = None,
    approximate: Annotated[bool, Option("--approximate", help="For millions: by faiss.")] = False,
    tokenizer: arg.Tokenizer = None,
    options: arg.Options = None,
) -> None:
    """Write an index of every word of a text, in its sentence."""
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
    sentence: Annotated[str, Argument(help=r'With the word in brackets: "The \[cat] sat".')],
    index: At,
    model: arg.Model = arg.ENGLISH,
    k: K = 10,
    exact: Annotated[bool, Option("--exact", help="Compare with all, whatever it takes.")] = False,
    options: arg.Options = None,
    as_json: arg.Json = False,
) -> None:
    """List the occurrences nearest to a word in its sentence."""
    show(sentence, model, index, k, options, as_json, exact)


@index.command()
def recall(
    index: At,
    k: K = 10,
    queries: Annotated[int, Option(min=1, help="Words of the index to look for.")] = 200,
    as_json: arg.Json = False,
) -> None:
    """Tell which share of the nearest occurrences approximate search finds."""
    show_recall(index, k, queries, as_json)
