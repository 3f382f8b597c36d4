"""`relmo neighbours`: nearest words of a word, or nearest occurrences of a word in context."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from relmo.cli import arguments as arg
from relmo.cli.index import build
from relmo.cli.occurrences import show
from relmo.errors import ConfigError


def neighbours(
    word: Annotated[
        str, Argument(help=r'A word, or a sentence with one word in brackets: "The \[cat] sat".')
    ],
    model: arg.OptionalModel = None,
    static: arg.Static = None,
    corpus: Annotated[list[str] | None, Option(help="Text to search for occurrences.")] = None,
    index: Annotated[Path | None, Option(help="Index to search, instead of --corpus.")] = None,
    k: Annotated[int, Option("-k", min=1, help="Number of neighbours.")] = 10,
    layer: arg.Layer = "average",
    lines: arg.Lines = False,
    language: arg.Language = "en",
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    r"""List the nearest words of a word, or the nearest occurrences of a word in its sentence.

    A word alone is compared by three kinds of vectors: the token encoder's, the softmax's, and
    --static vectors. A word in its sentence is compared with the words of --corpus or --index.

    [bold]Examples[/bold]

      relmo neighbours present -m run/model --static glove.txt

      relmo neighbours "Live in the \[present], not the past." --corpus novels/
    """
    arg.use_threads(threads)
    model = arg.model_beside(static, model)
    if "[" not in word:
        if corpus or index:
            raise ConfigError('Mark the word in a sentence to find occurrences: "The [cat] sat".')
        return _near_words(word, model, options, static, k, as_json)
    if static or not model:
        raise ConfigError("Static vectors do not depend on the sentence: leave --static out.")
    if (corpus is None) == (index is None):
        raise ConfigError("Give the text to search: either --corpus TEXT or --index DIR.")
    with tempfile.TemporaryDirectory(prefix="relmo-index-") as folder:
        where = index or Path(folder, "index")
        if corpus:
            build(corpus, where, model, layer, lines, language, options=options)
        return show(word, model, where, k, options, as_json)


def _near_words(
    word: str, model: str | None, options: Path | None, static: str | None, k: int, as_json: bool
) -> None:
    from rich.cells import cell_len, set_cell_size

    from relmo.features.static import StaticVectors
    from relmo.inference.model import load
    from relmo.vectors.neighbours import nearest_by_kind

    loaded = load(model, options=options) if model else None
    vectors = StaticVectors.load(static) if static else None
    found = nearest_by_kind(word, k, model=loaded, static=vectors)
    if as_json:
        values = {by: [asdict(n) for n in some] for by, some in found.items()}
        return echo(json.dumps(values, ensure_ascii=False))
    shown = {by: [f"  {n.score:.3f}  {n.word}" for n in some] for by, some in found.items()}
    columns = [[f"by the {by} vector", *some] for by, some in shown.items()]
    widths = [max(map(cell_len, column)) + 3 for column in columns]
    rows = zip_longest(*columns, fillvalue="")
    return echo("\n".join("".join(map(set_cell_size, r, widths)).rstrip() for r in rows))
