"""Arguments that mean the same in every verb."""

from __future__ import annotations

from pathlib import Path as _Path
from typing import Annotated

import typer

ENGLISH = "en"  # comes with relmo, so that every verb has a model
Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A model directory or zip of any known format, HDF5 weights, or a name.",
    ),
]
OptionalModel = Annotated[
    str | None,
    typer.Option(
        "-m", "--model", metavar="MODEL", help="A model; en by default, or none with --static."
    ),
]
Static = Annotated[
    str | None,
    typer.Option(
        "--static",
        metavar="VECTORS",
        help="GloVe, word2vec or fastText as text, or .npy with vocab.txt; alone or with a model.",
    ),
]
Options = Annotated[
    _Path | None,
    typer.Option("--options", help="The options.json of HDF5 weights, where they need naming."),
]
VectorOutput = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="Ends in .hdf5, .h5, .safetensors, .npz, .parquet or .jsonl; - is stdout (jsonl).",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="whitespace, words, characters or chinese; the model's own by default."),
]
Precision = Annotated[
    str, typer.Option(help="float32, or int8: quicker on large models, less exact.")
]
Encoding = Annotated[str, typer.Option(help="Of the text.")]
Errors = Annotated[
    str, typer.Option(help="strict stops at bytes that do not decode; replace marks them.")
]
Layer = Annotated[str, typer.Option(help="average, top, or a number from 0.")]
Lines = Annotated[bool, typer.Option("--lines", help="A sentence a line, not prose.")]
Prose = Annotated[
    str | None, typer.Option(metavar="LANGUAGE", help="Of running text, not a sentence a line.")
]
Language = Annotated[str, typer.Option(help="Of prose, as ISO 639 writes it: en, de, zh.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Cores to use; all of them by default.")
]
Seed = Annotated[int, typer.Option("--seed", help="Where random numbers start.")]


def model_beside(static: str | None, model: str | None) -> str | None:
    """The model that was meant: the default one, unless static vectors were asked for alone."""
    return model or (None if static else ENGLISH)


def use_threads(threads: int | None) -> None:
    """Limit PyTorch to so many cores."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
