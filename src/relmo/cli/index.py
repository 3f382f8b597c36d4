"""`relmo index`: build and search an index of the words of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.vectors.corpus_index import Occurrences

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
TEXT = "Text, by default prose: files or directories; or vector files that `relmo embed` wrote."


@index.command()
def build(
    text: Annotated[list[str], Argument(metavar="TEXT...", help=TEXT)],
    output: Annotated[Path, Option("-o", "--output", metavar="DIR", help="New directory.")],
    model: arg.Model = arg.ENGLISH,
    layers: arg.Layers = "average",
    lines: arg.Lines = False,
    language: arg.Language = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    stop_words: Annotated[
        Path | None, Option(help="File of words to leave out, one per line.")
    ] = None,
    approximate: Annotated[
        bool, Option("--approximate", help="Add a faiss index, for millions of words.")
    ] = False,
    tokenizer: arg.Tokenizer = None,
    options: arg.Options = None,
    threads: arg.Threads = None,
    layer: arg.OldLayer = None,
) -> None:
    """Build an index: one vector per word of the text, in context.

    [bold]Examples[/bold]

      relmo index build novels/ -o novels.index

      relmo index build sentences.txt --lines -o my.index -m my-run/model --layers top

      relmo index build vectors.hdf5 -o vectors.index --approximate
    """
    from relmo.inference.model_source import ModelSource
    from relmo.text.corpus import read_lines
    from relmo.vectors.corpus_index import IndexOptions, build_index

    arg.use_threads(threads)
    listed = read_lines(stop_words, is_fixed=True) if stop_words else ()
    stopped = (line.strip().lower() for line in listed)
    built = build_index(
        text,
        output,
        ModelSource(model, options, tokenizer),
        options=IndexOptions(arg.parse_layer(layers, layer), tuple(stopped), approximate),
        text_options=arg.build_text_options(lines, language, encoding, errors),
    )
    typer.echo(f"Wrote {output}: {len(built):,} words", err=True)


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
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    r"""List the nearest occurrences of a word in its sentence.

    [bold]Examples[/bold]

      relmo index search "Live in the \[present], not the past." -i novels.index

      relmo index search "Live in the \[present], not the past." -i novels.index -k 20 --json
    """
    from relmo.inference.model_source import ModelSource
    from relmo.vectors.corpus_index import search_index

    arg.use_threads(threads)
    source = ModelSource(model, options)
    show_occurrences(search_index(sentence, index, source, k=k, exact=exact), as_json)


@index.command()
def recall(
    index: At,
    k: K = 10,
    queries: Annotated[
        int, Option(min=1, help="Number of words of the index to search for.")
    ] = 200,
    as_json: arg.Json = False,
) -> None:
    """Measure the recall of approximate search: the share of nearest occurrences it finds.

    [bold]Examples[/bold]

      relmo index build novels/ -o novels.index --approximate

      relmo index recall -i novels.index --queries 500
    """
    from relmo.vectors.corpus_index import measure_recall

    found = measure_recall(index, k=k, queries=queries)
    typer.echo(json.dumps(found.as_dict()) if as_json else f"recall@{k} {found.recall:.4f}")


def show_occurrences(found: Occurrences, as_json: bool) -> None:
    """Print occurrences: their similarity, and their sentence with the word in brackets."""
    if as_json:
        typer.echo(json.dumps(found.as_dict(), ensure_ascii=False))
        return
    for hit in found.hits:
        shown = " ".join(f"[{t}]" if i == hit.place else t for i, t in enumerate(hit.tokens))
        typer.echo(f"{hit.score:.3f}  {shown}")
