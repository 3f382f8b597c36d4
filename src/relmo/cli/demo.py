"""`relmo demo`: see relmo work, offline, in a few seconds."""

from __future__ import annotations

import typer

from relmo.cli import arguments as arg

SENTENCES = (
    "The bank raised its interest rates .",
    "They sat down on the bank of the river .",
    "Le chat dort .",
)


def demo(seed: arg.Seed = 13) -> None:
    """Build a tiny model, embed a few sentences with it and look at one word in two contexts.

    [bold]Examples[/bold]

      relmo demo
    """
    import numpy as np
    import torch

    from relmo.formats import ModelContents
    from relmo.model.bilm import BiLm
    from relmo.presets import read_preset
    from relmo.vectors.embedder import Embedder

    torch.manual_seed(seed)
    config = read_preset("tiny").model
    random = ModelContents(config, BiLm(config).state_dict(), "random weights")
    model = Embedder(random, tokenizer="whitespace")
    typer.echo(
        "A tiny ELMo with RANDOM weights: it shows how relmo works, its vectors mean nothing."
    )
    typer.echo("")
    vectors = model.embed(SENTENCES, layers="all")
    for sentence, array in zip(SENTENCES, vectors, strict=True):
        typer.echo(
            f"  {sentence:<44} {array.shape[0]} layers × {array.shape[1]} tokens × {array.shape[2]}"
        )
    typer.echo("")
    typer.echo('"bank" in the first two sentences, cosine of its vectors by layer:')
    places = [s.split().index("bank") for s in SENTENCES[:2]]
    for layer in range(config.n_outputs):
        one, other = (v[layer, p] for v, p in zip(vectors, places, strict=False))
        cosine = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
        note = "the token alone: always 1" if layer == 0 else "the token in its context"
        typer.echo(f"  layer {layer}: {cosine:+.3f}   {note}")
    again = model.embed(SENTENCES, layers="all")
    same = all(np.array_equal(a, b) for a, b in zip(vectors, again, strict=True))
    typer.echo("")
    typer.echo(f"Embedded again: {'the same numbers, bit for bit' if same else 'OTHER NUMBERS'}.")
    typer.echo("Next: relmo models, relmo embed --help, docs/ and README.md.")
