"""Arguments that mean the same in every verb."""

from __future__ import annotations

import warnings
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from relmo.errors import RelmoWarning

if TYPE_CHECKING:
    from relmo.inference.layer_selection import LayerSpec
    from relmo.vectors.corpus_index import Layer

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
Layers = Annotated[
    str,
    typer.Option(metavar="LAYERS", help="average, lstm (mean of layers 1 to L), top, or a number."),
]
OldLayer = Annotated[str | None, typer.Option("--layer", hidden=True)]
Lines = Annotated[
    bool,
    typer.Option(
        "--lines/--prose",
        help="One sentence per line, or prose, which is split into sentences.",
    ),
]
Language = Annotated[
    str, typer.Option(metavar="CODE", help="Language of prose, as an ISO 639 code: en, de, zh.")
]
LineText = Annotated[
    str,
    typer.Argument(metavar="TEXT", help="Text, by default one sentence per line; - is stdin."),
]
CORPUS = "Text, by default prose: files, directories or patterns; may be repeated."
Results = Annotated[
    _Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Also write the results, as JSON."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Number of threads. Default: one per core.")
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]


def use_threads(threads: int | None) -> None:
    """Set the number of PyTorch's threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def parse_layers(text: str) -> LayerSpec:
    """Parse `--layers`: a number, several with commas, or a name, which the library checks."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        return cast("LayerSpec", text)
    return numbers if "," in text else numbers[0]


def parse_layer(layers: str, old: str | None) -> Layer:
    """Parse `--layers` of a verb that needs one vector per token; `old` is from `--layer`."""
    if old is not None:
        warnings.warn(
            "--layer is now called --layers; the old name will be removed in 0.4.",
            RelmoWarning,
            stacklevel=2,
        )
    return cast("Layer", parse_layers(layers if old is None else old))  # checked by the library
