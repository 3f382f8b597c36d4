"""`relmo embed`: write the vectors of a text to a file."""

from __future__ import annotations

from typing import Annotated

import typer

from relmo.cli import arguments as arg


def embed(
    text: arg.LineText,
    output: arg.VectorOutput,
    model: arg.Model = arg.ENGLISH,
    layers: Annotated[
        str,
        typer.Option(
            metavar="LAYERS",
            help="all, average, lstm, top, a number (0: token encoder, -1: top), or several (0,2).",
        ),
    ] = "average",
    lines: arg.Lines = True,
    language: arg.Language = None,
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
    With --prose, the text is split into sentences, and a dataset is named by its sentence's number.

    [bold]Examples[/bold]

      relmo embed sentences.txt -o vectors.hdf5 --layers all

      relmo embed novel.txt -o vectors.parquet --prose --language en

      relmo embed tokenised.txt -m small -o vectors.parquet --tokenizer whitespace

      echo "A line of text ." | relmo embed - -m ./my-model -o - --layers top | head -1
    """
    from relmo.inference.model_source import ModelSource
    from relmo.vectors.bulk import embed_file

    arg.use_threads(threads)
    written = embed_file(
        text,
        output,
        ModelSource(model, options, tokenizer, precision),
        layers=arg.parse_layers(layers),
        dtype=dtype,
        workers=workers,
        text_options=arg.build_text_options(lines, language, encoding, errors),
    )
    if not written.tokens:
        arg.warn_of_no_words(text)
    if output != "-":
        what = f"{written.sentences:,} sentences, {written.tokens:,} tokens"
        typer.echo(f"Wrote {output}: {what}", err=True)
