"""Arguments that mean the same in every verb."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from relmo.errors import ConfigError, RelmoWarning

if TYPE_CHECKING:
    from relmo.inference.layer_selection import LayerSpec
    from relmo.text.reading import TextOptions
    from relmo.vectors.corpus_index import Layer

ENGLISH = "en"  # comes with relmo, so that every verb has a model
_LANGUAGE = re.compile(r"[a-z]{2}(-\w+)*")
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
    typer.Option(
        metavar="LAYERS",
        help="average, lstm (mean of layers 1 to L), top, or a number (0: token encoder, -1: top).",
    ),
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
    str | None,
    typer.Option(
        metavar="CODE", help="Language of prose, as an ISO 639 code: en, de, zh. Default: en."
    ),
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
MAX_SEED = 2**32 - 1  # that of relmo.config, whose import would make --help slow
Seed = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Random seed.")]


def use_threads(threads: int | None) -> None:
    """Set the number of PyTorch's threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def check_language(lines: bool, language: str | None) -> None:
    """Refuse a language for text that is not split into sentences."""
    if lines and language is not None:
        raise ConfigError(
            f"--language {language} is for prose, but this text has one sentence per line: add "
            "--prose, or leave --language out."
        )


def build_text_options(
    lines: bool, language: str | None, encoding: str, errors: str
) -> TextOptions:
    """Build what says how to read a text."""
    from relmo.text.reading import TextOptions

    check_language(lines, language)
    return TextOptions(not lines, language or ENGLISH, encoding, errors)


def warn_of_no_words(text: str) -> None:
    """Warn that a text is empty, or blank."""
    name = "standard input" if text == "-" else text
    typer.echo(f"Warning: There is no word in {name}. Check the text.", err=True)


def refuse_old_prose(arguments: Sequence[str]) -> None:
    """Refuse `--prose en`, of which `en` would be taken for a text or a word."""
    for flag, value in pairwise(arguments):
        if flag == "--":
            return
        if flag == "--prose" and _LANGUAGE.fullmatch(value) and not _Path(value).exists():
            raise ConfigError(
                f"--prose takes no value, but {value!r} follows it: for the language of the prose, "
                f"write --prose --language {value}. If you mean a word, put it before --prose."
            )


def refuse_unused(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Refuse options that were given and would have no effect."""
    given = [
        "/".join([max(p.opts, key=len), *p.secondary_opts])
        for p in context.command.params
        if p.name in names and _was_given(context, p.name)
    ]
    if given:
        raise ConfigError(f"{why}, so {' and '.join(given)} would do nothing: leave it out.")


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
