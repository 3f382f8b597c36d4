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
        help="Model: a directory, zip or HDF5 weights of any known format, or a name.",
    ),
]
OptionalModel = Annotated[
    str | None,
    typer.Option(
        "-m", "--model", metavar="MODEL", help="Model. Default: en, or none with --static."
    ),
]
Static = Annotated[
    str | None,
    typer.Option(
        "--static",
        metavar="VECTORS",
        help="Static vectors: GloVe, word2vec or fastText text files, or .npy with vocab.txt.",
    ),
]
Options = Annotated[
    _Path | None,
    typer.Option("--options", help="The options.json of HDF5 weights, if it is not beside them."),
]
VectorOutput = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="Output file: .hdf5, .h5, .safetensors, .npz, .parquet or .jsonl; - is stdout.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="whitespace, words, characters or chinese. Default: the model's."),
]
Precision = Annotated[
    str, typer.Option(help="float32, or int8: faster for large models, less exact.")
]
Encoding = Annotated[str, typer.Option(help="Encoding of the text.")]
Errors = Annotated[
    str, typer.Option(help="Bytes that do not decode: strict stops, replace puts U+FFFD.")
]
Layer = Annotated[str, typer.Option(help="Layer: average, top, or a number from 0.")]
Lines = Annotated[bool, typer.Option("--lines", help="The text has one sentence per line.")]
Prose = Annotated[
    str | None,
    typer.Option(metavar="LANGUAGE", help="The text is prose in this language, such as en."),
]
Language = Annotated[str, typer.Option(help="Language of prose, as an ISO 639 code: en, de, zh.")]
Results = Annotated[
    _Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Also write the results, as JSON."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Number of threads. Default: one per core.")
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]


def model_beside(static: str | None, model: str | None) -> str | None:
    """The model to use: the default one, unless only static vectors were given."""
    return model or (None if static else ENGLISH)


def use_threads(threads: int | None) -> None:
    """Set the number of PyTorch's threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
