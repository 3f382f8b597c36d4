"""`relmo index`: occurrences of words, written once and searched often."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from relmo.cli import arguments as arg

index = typer.Typer(
    help="""Write an index of the words of a text, and find the nearest occurrences in it.

    [bold]Examples[/bold]

      relmo index build novels/ -m run/model -o novels.index

      relmo index search "Live in the [present], not the past." -m run/model -i novels.index
    """,
    no_args_is_help=True,
)


@index.command()
def build(
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Files or directories.")],
    model: arg.Model,
    output: Annotated[Path, Option("-o", "--output", metavar="DIR", help="A new directory.")],
    layer: arg.Layer = "average",
    lines: arg.Lines = False,
    language: Annotated[str, Option(help="Of prose.")] = "en",
    stop_words: Annotated[Path | None, Option(help="Words to leave out, one a line.")] = None,
    options: arg.Options = None,
) -> None:
    """Write an index of every word of a text, in its sentence."""
    from relmo.text.corpus import find_texts, read_lines
    from relmo.text.sentences import read_sentences
    from relmo.vectors.embedder import load
    from relmo.vectors.neighbours import index_corpus

    stopped = [line.strip().lower() for line in read_lines(stop_words)] if stop_words else []
    texts = find_texts(text)
    sentences = (s for t in texts for s in read_sentences(t, lines=lines, language=language))
    chosen: Any = int(layer) if layer.isdecimal() else layer  # checked by the library
    embedder = load(model, options=options)
    index_corpus(output, embedder, sentences, layers=chosen, stop_words=stopped)


@index.command()
def search(
    sentence: Annotated[str, typer.Argument(help='With the word in brackets: "The [cat] sat".')],
    model: arg.Model,
    index: Annotated[Path, Option("-i", "--index", help="What `relmo index build` wrote.")],
    k: Annotated[int, Option("-k", min=1, help="How many.")] = 10,
    options: arg.Options = None,
    as_json: arg.Json = False,
) -> None:
    """List the occurrences nearest to a word in its sentence."""
    show(sentence, model, index, k, options, as_json)


def show(text: str, model: str, at: Path, k: int, options: Path | None, as_json: bool) -> None:
    """Search and print."""
    from relmo.text.marks import parse_marked
    from relmo.vectors.embedder import load
    from relmo.vectors.index import VectorIndex
    from relmo.vectors.neighbours import nearest_occurrences

    found, embedder = VectorIndex(at), load(model, options=options)
    hits = nearest_occurrences(found, embedder, parse_marked(text, embedder.tokenize), k)
    for hit in [] if as_json else hits:
        marked = " ".join(f"[{t}]" if i == hit.place else t for i, t in enumerate(hit.tokens))
        typer.echo(f"{hit.score:.3f}  {marked}")
    if as_json:
        typer.echo(json.dumps([asdict(hit) for hit in hits], ensure_ascii=False))
