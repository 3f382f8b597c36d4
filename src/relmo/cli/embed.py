"""`relmo embed`: write the vectors of a text to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from relmo.cli import arguments as arg


def embed(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Text, one sentence per line; - is stdin.")
    ],
    output: arg.VectorOutput,
    model: arg.Model = arg.ENGLISH,
    layers: Annotated[
        str, typer.Option(help="all, top, average, a number from 0, or several (0,2).")
    ] = "average",
    tokenizer: arg.Tokenizer = None,
    dtype: Annotated[
        str, typer.Option(help="Type of the numbers in the file: float32 or float16.")
    ] = "float32",
    precision: arg.Precision = "float32",
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    options: arg.Options = None,
    threads: arg.Threads = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
) -> None:
    """Embed a text: one vector per token and layer.

    The .hdf5 layout is that of the `allennlp elmo` command: one dataset per line, named by the
    line's number from 0, of shape (layers, tokens, dim) for `--layers all`, else (tokens, dim).

    [bold]Examples[/bold]

      relmo embed sentences.txt -o vectors.hdf5 --layers all

      relmo embed tokenised.txt -m small -o vectors.parquet --tokenizer whitespace

      echo "A line of text ." | relmo embed - -m ./my-model -o - --layers top | head -1
    """
    from relmo.vectors.sinks import check_sink, open_sink

    check_sink(output)

    from relmo.inference.model import load
    from relmo.progress import progress
    from relmo.text.corpus import read_lines
    from relmo.vectors.bulk import embed_lines, written_behind

    arg.use_threads(threads)
    lines = read_lines(text, encoding=encoding, errors=errors)
    loaded = load(model, options=options, precision=precision, tokenizer=tokenizer)
    results = embed_lines(loaded, lines, layers=parse_layers(layers), workers=workers)
    size = Path(text).stat().st_size if Path(text).is_file() else 0
    done = 0
    with (
        open_sink(output, dtype=dtype) as sink,
        written_behind(sink.write, n=256) as write,
        progress("Embedding", unit="words") as advance,
    ):
        for line, tokens, vectors in results:
            write(line, tokens, vectors)
            done += len(line.encode(errors="replace")) + 1
            advance(len(tokens), min(1.0, done / size) if size else None)


def parse_layers(text: str) -> Any:
    """Parse `--layers` into what `Model.embed` takes, which checks the names."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        return text
    return numbers if "," in text else numbers[0]
