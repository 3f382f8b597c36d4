"""`relmo probe wic`: whether a word means the same in two sentences, by cosines."""

from __future__ import annotations

from typing import Annotated

import typer

from relmo.cli import arguments as arg
from relmo.cli.probe_pos import show

Part = Annotated[str, typer.Option(metavar="DIR", help="Holds *.data.txt and *.gold.txt.")]


def wic(
    train: Part,
    dev: Part,
    test: Part,
    model: arg.OptionalModel = None,
    static: arg.Static = None,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Tell whether a word means the same in two sentences, by the cosine of its two vectors.

    The threshold is the one that is right most often: on the training part for the accuracy on
    dev, on both for that on test. Static vectors are those of the word alone (the same wherever its
    form is the same), and their mean over the sentence (static context).

    [bold]Examples[/bold]

      relmo probe wic --train WiC/train --dev WiC/dev --test WiC/test -m my-model

      relmo probe wic --train WiC/train --dev WiC/dev --test WiC/test --static glove.txt --json
    """
    from relmo.analysis.sources import open_source
    from relmo.analysis.word_in_context import compare_pairs, read_pairs

    arg.use_threads(threads)
    parts = [read_pairs(part) for part in (train, dev, test)]
    source = open_source(arg.model_beside(static, model), static, options=options, contexts=True)
    result = compare_pairs(source, *parts)
    show(result, as_json, majority=result.majority)
