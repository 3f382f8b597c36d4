"""`relmo probe pos`: part-of-speech tagging by linear classifiers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.analysis.probes import ProbeResult
    from relmo.analysis.word_in_context import PairResult

Part = Annotated[str, typer.Option(metavar="FILE", help="Treebank in CoNLL-U.")]


def pos(
    train: Part,
    dev: Part,
    test: Part,
    model: arg.OptionalModel = None,
    static: arg.Static = None,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs.")] = 8,
    seed: arg.Seed = 0,
    options: arg.Options = None,
    output: arg.Results = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Predict part-of-speech tags from vectors, by one linear classifier per kind of vectors.

    The kinds are: each layer, the average of the layers, and a learned scalar mix of the layers;
    with --static, the static vectors; with both, the average concatenated with static vectors.

    [bold]Examples[/bold]

      relmo probe pos --train train.conllu --dev dev.conllu --test test.conllu -m run/model

      relmo probe pos --train t.conllu --dev d.conllu --test e.conllu --static glove.txt --json
    """
    from relmo.analysis.probes import probe_pos
    from relmo.inference.model_source import ModelSource

    arg.use_threads(threads)
    result = probe_pos(
        train,
        dev,
        test,
        model=None if model is None else ModelSource(model, options),
        static=static,
        epochs=epochs,
        seed=seed,
        results=output,
    )
    show(result, as_json)


def show(result: ProbeResult | PairResult, as_json: bool, **more: tuple[float, float]) -> None:
    """Print accuracies on dev and test, one row per kind of vectors; `more` adds baselines."""
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
        return
    typer.echo(f"{'':<18}{'dev':>8}{'test':>8}")
    for name, (on_dev, on_test) in (result.rows | more).items():
        typer.echo(f"{name:<18}{on_dev:>8.2f}{on_test:>8.2f}")
