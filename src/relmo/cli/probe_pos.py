"""`relmo probe pos`: parts of speech, by linear classifiers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.analysis.probes import ProbeResult
    from relmo.analysis.word_in_context import PairResult

Part = Annotated[str, typer.Option(metavar="FILE", help="CoNLL-U.")]


def pos(
    train: Part,
    dev: Part,
    test: Part,
    model: arg.OptionalModel = None,
    static: arg.Static = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to read the training part.")] = 8,
    seed: arg.Seed = 0,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Find parts of speech in vectors, by a linear classifier for each kind of them.

    Kinds are each layer, the average of the layers, and a mix of them that is learned with its
    classifier; static vectors; and with both, static vectors behind the average.

    [bold]Examples[/bold]

      relmo probe pos --train train.conllu --dev dev.conllu --test test.conllu -m run/model

      relmo probe pos --train t.conllu --dev d.conllu --test e.conllu --static glove.txt --json
    """
    from relmo.analysis.probes import probe
    from relmo.analysis.sources import open_source
    from relmo.text.conllu import read_conllu

    arg.use_threads(threads)
    parts = [list(read_conllu(path)) for path in (train, dev, test)]
    source = open_source(arg.model_beside(static, model), static, options=options)
    result = probe(
        source.embed, source.names, *parts, mixed=source.layers, epochs=epochs, seed=seed
    )
    show(result, as_json)


def show(result: ProbeResult | PairResult, as_json: bool, **more: tuple[float, float]) -> None:
    """Print accuracies on dev and test, of each kind of vectors and of more to compare with."""
    if as_json:
        typer.echo(json.dumps({**asdict(result), "best": result.best}))
        return
    rows = {
        name: (on_dev, on_test)
        for name, on_dev, on_test in zip(result.names, result.dev, result.test, strict=True)
    }
    typer.echo(f"{'':<18}{'dev':>8}{'test':>8}")
    for name, (on_dev, on_test) in (rows | more).items():
        typer.echo(f"{name:<18}{on_dev:>8.2f}{on_test:>8.2f}")
