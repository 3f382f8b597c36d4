"""`relmo probe wic`: Word-in-Context, by cosine similarity."""

from __future__ import annotations

from typing import Annotated

import typer

from relmo.cli import arguments as arg
from relmo.cli.probe_pos import show

Part = Annotated[str, typer.Option(metavar="DIR", help="Directory with *.data.txt and *.gold.txt.")]


def wic(
    train: Part,
    dev: Part,
    test: Part,
    model: arg.OptionalModel = None,
    static: arg.Static = None,
    options: arg.Options = None,
    output: arg.Results = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Word-in-Context: decide by cosine similarity whether a word has the same sense twice.

    The threshold is the most accurate one on train (for the accuracy on dev) or on train and dev
    (for the accuracy on test). With --static, two more kinds are compared: the word's static
    vector, and the mean of the static vectors of its sentence (static context).

    [bold]Examples[/bold]

      relmo probe wic --train WiC/train --dev WiC/dev --test WiC/test -m my-model

      relmo probe wic --train WiC/train --dev WiC/dev --test WiC/test --static glove.txt --json
    """
    from relmo.analysis.word_in_context import probe_wic
    from relmo.inference.model_source import ModelSource

    arg.use_threads(threads)
    result = probe_wic(
        train,
        dev,
        test,
        model=None if model is None else ModelSource(model, options),
        static=static,
        results=output,
    )
    show(result, as_json, majority=result.majority)
