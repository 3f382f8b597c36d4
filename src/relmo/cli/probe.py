"""`relmo probe`: what the layers of a model hold."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from relmo.cli import arguments as arg
from relmo.errors import ConfigError

if TYPE_CHECKING:
    from relmo.analysis.probes import Embed

probe = typer.Typer(
    help="""Tell what the layers of a model hold, by linear classifiers.

    [bold]Examples[/bold]

      relmo probe pos --train train.conllu --dev dev.conllu --test test.conllu -m my-model
    """,
    no_args_is_help=True,
)
Part = Annotated[str, typer.Option(metavar="FILE", help="CoNLL-U.")]


@probe.command()
def pos(
    train: Part,
    dev: Part,
    test: Part,
    model: Annotated[str | None, typer.Option("-m", "--model", help="A model.")] = None,
    static: Annotated[str | None, typer.Option(help="Static vectors instead, to compare.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to read the training part.")] = 8,
    seed: arg.Seed = 0,
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Find parts of speech in each layer's vectors and in their average, by a linear classifier.

    [bold]Examples[/bold]

      relmo probe pos --train train.conllu --dev dev.conllu --test test.conllu -m my-model

      relmo probe pos --train t.conllu --dev d.conllu --test e.conllu --static glove.txt --json
    """
    if (model is None) == (static is None):
        raise ConfigError("Say what to probe: -m MODEL, or --static VECTORS.")

    from relmo.analysis.probes import probe as run
    from relmo.analysis.sources import model_layers, static_layer
    from relmo.text.conllu import read_conllu

    arg.use_threads(threads)
    embed: Embed
    names, embed = static_layer(static) if static else model_layers(str(model), options)
    parts = [list(read_conllu(path)) for path in (train, dev, test)]
    result = run(embed, names, *parts, epochs=epochs, seed=seed)
    if as_json:
        typer.echo(json.dumps({**asdict(result), "best": result.best}))
        return
    typer.echo(f"{'':<10}{'dev':>8}{'test':>8}")
    for name, on_dev, on_test in zip(result.names, result.dev, result.test, strict=True):
        typer.echo(f"{name:<10}{on_dev:>8.2f}{on_test:>8.2f}")
