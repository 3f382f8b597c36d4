"""`relmo neighbours`: what is near a word, or near a word in its sentence."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from relmo.cli import arguments as arg
from relmo.cli.index import build, show
from relmo.errors import ConfigError


def neighbours(
    word: Annotated[str, typer.Argument(help='A word, or "a sentence with a [word]".')],
    model: arg.Model,
    corpus: Annotated[list[str] | None, Option(help="Text to find occurrences in.")] = None,
    index: Annotated[Path | None, Option(help="An index of such text, made before.")] = None,
    k: Annotated[int, Option("-k", min=1, help="How many.")] = 10,
    layer: arg.Layer = "average",
    lines: arg.Lines = False,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """List the words nearest to a word or, of a word in its sentence, the nearest occurrences.

    A word alone is compared with the model's vocabulary by the vector that the token encoder gives
    it and, where the model has a softmax, by the vector that predicts it.

    [bold]Examples[/bold]

      relmo neighbours present -m run/model

      relmo neighbours "Live in the [present], not the past." -m run/model --corpus novels/
    """
    arg.use_threads(threads)
    if "[" not in word:
        if corpus or index:
            raise ConfigError('Mark the word in a sentence to find occurrences: "The [cat] sat".')
        return _near_words(word, model, options, k, as_json)
    if (corpus is None) == (index is None):
        raise ConfigError("Say where to look: --corpus TEXT, or --index DIR.")
    with tempfile.TemporaryDirectory(prefix="relmo-index-") as folder:
        if corpus:
            index = Path(folder, "index")
            build(corpus, model, index, layer=layer, lines=lines, options=options)
        assert index is not None
        return show(word, model, index, k, options, as_json)


def _near_words(word: str, model: str, options: Path | None, k: int, as_json: bool) -> None:
    from relmo.formats import read_model
    from relmo.vectors import neighbours as near
    from relmo.vectors.embedder import Embedder

    contents = read_model(model, options=options)
    softmax = near.softmax_vectors(contents)
    embedder = Embedder(contents)
    by_token = near.token_vectors(embedder, near.vocabulary_of(contents))
    found = {"token": near.nearest_words(by_token, word, embedder.encode([word])[0], k)}
    if softmax is not None and softmax.number(word) is not None:
        found["softmax"] = near.nearest_words(softmax, word, softmax.vector(word), k)
    if as_json:
        values = {by: [asdict(n) for n in some] for by, some in found.items()}
        typer.echo(json.dumps(values, ensure_ascii=False))
        return
    for by, some in found.items():
        typer.echo(f"by the {by} vector")
        typer.echo("".join(f"  {n.score:.3f}  {n.word}\n" for n in some))
