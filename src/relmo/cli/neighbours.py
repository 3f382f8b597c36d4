"""`relmo neighbours`: nearest words of a word, or nearest occurrences of a word in context."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.cells import cell_len, set_cell_size
from typer import Argument, Context, Option, echo

from relmo.cli import arguments as arg
from relmo.cli.index import show_occurrences
from relmo.errors import ConfigError

if TYPE_CHECKING:
    from relmo.vectors.neighbours import Neighbours


TEXT_FLAGS = ("lines", "language", "encoding", "errors")
LAYER_FLAGS = ("layers", "layer")


def neighbours(
    context: Context,
    word: Annotated[
        str, Argument(help=r'A word, or a sentence with one word in brackets: "The \[cat] sat".')
    ],
    model: arg.OptionalModel = None,
    static: arg.Static = None,
    corpus: Annotated[list[str] | None, Option(metavar="TEXT", help=arg.CORPUS)] = None,
    index: Annotated[Path | None, Option(help="Index to search, instead of --corpus.")] = None,
    k: Annotated[int, Option("-k", min=1, help="Number of neighbours.")] = 10,
    layers: arg.Layers = "average",
    lines: arg.Lines = False,
    language: arg.Language = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    tokenizer: arg.Tokenizer = None,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
    layer: arg.OldLayer = None,
) -> None:
    r"""List the nearest words of a word, or the nearest occurrences of a word in its sentence.

    A word alone is compared by three kinds of vectors: the token encoder's, the softmax's, and
    --static vectors. A word in its sentence is compared with the words of --corpus or --index.

    [bold]Examples[/bold]

      relmo neighbours present -m run/model --static glove.txt

      relmo neighbours "Live in the \[present], not the past." --corpus novels/
    """
    from relmo.inference.model_source import ModelSource
    from relmo.vectors.corpus_index import search_corpus, search_index
    from relmo.vectors.neighbours import neighbours

    arg.use_threads(threads)
    if "[" not in word:
        if corpus or index:
            raise ConfigError('Mark the word in a sentence to find occurrences: "The [cat] sat".')
        why = "A word without a sentence is compared by vectors that do not depend on a text"
        arg.refuse_unused(context, (*LAYER_FLAGS, *TEXT_FLAGS), why)
        if model is None and static is None:
            model = arg.ENGLISH
        chosen = None if model is None else ModelSource(model, options, tokenizer)
        return _show_words(neighbours(word, chosen, static=static, k=k), as_json)
    source = ModelSource(model or arg.ENGLISH, options, tokenizer)
    if static:
        raise ConfigError("Static vectors do not depend on the sentence: leave --static out.")
    if corpus is not None and index is not None:
        raise ConfigError("Found both --corpus and --index: leave one of them out.")
    if corpus is None and index is None:
        raise ConfigError("Give the text to search: either --corpus TEXT or --index DIR.")
    if index is not None:
        why = "An index has its text and its layers"
        arg.refuse_unused(context, (*LAYER_FLAGS, *TEXT_FLAGS), why)
        return show_occurrences(search_index(word, index, source, k=k), as_json)
    found = search_corpus(
        word,
        corpus or (),
        source,
        k=k,
        layers=arg.parse_layer(layers, layer),
        text_options=arg.build_text_options(lines, language, encoding, errors),
    )
    return show_occurrences(found, as_json)


def _show_words(found: Neighbours, as_json: bool) -> None:
    """Print words in columns, one per kind of vectors."""
    if as_json:
        return echo(json.dumps(found.as_dict(), ensure_ascii=False))
    shown = {by: [f"  {n.score:.3f}  {n.word}" for n in some] for by, some in found.by_kind.items()}
    columns = [[f"by the {by} vector", *some] for by, some in shown.items()]
    widths = [max(map(cell_len, column)) + 3 for column in columns]
    rows = zip_longest(*columns, fillvalue="")
    return echo("\n".join("".join(map(set_cell_size, r, widths)).rstrip() for r in rows))
