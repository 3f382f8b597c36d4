"""Text in files: one sentence a line, read as a stream."""

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from relmo.errors import ConfigError, DataError

_CHUNK = 1 << 16
_ERRORS = ("strict", "replace", "ignore", "backslashreplace")


def read_lines(
    source: str | Path, *, encoding: str = "utf-8", errors: str = "strict"
) -> Iterator[str]:
    r"""Read the lines of a file, or of standard input if `source` is "-".

    A line ends at `\n` alone; a `\r` before it and a byte order mark at the start are dropped.
    Blank lines are kept. Gzip is recognised by its content. Bytes that do not decode raise
    `DataError`, or are treated as Python's "replace", "ignore" and "backslashreplace" do. The file
    is opened at once, and read as its lines are asked for.
    """
    if errors not in _ERRORS:
        raise ConfigError(f"Unknown --errors {errors!r}: expected one of {', '.join(_ERRORS)}.")
    try:
        if codecs.lookup(encoding).name in ("idna", "punycode"):
            raise LookupError("these are for names of hosts")
        "a".encode(encoding)  # refuses codecs that are not for text, such as "hex"
        decoder = codecs.getincrementaldecoder(encoding)(errors)
    except (LookupError, ValueError):
        expected = "a text encoding of Python's, such as utf-8, latin-1, cp1252 or utf-16"
        raise ConfigError(f"Unknown --encoding {encoding!r}: expected {expected}.") from None
    if source == "-" and not sys.stdin:
        raise DataError("Standard input is closed. Name a file, or send the text in by a pipe.")
    name = "standard input" if source == "-" else str(source)
    try:
        stream = _standard_input() if source == "-" else Path(source).open("rb")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", error)
        raise DataError(f"Cannot read {name}: {reason}. Check the name of the file.") from error
    if not hasattr(stream, "peek"):  # standard input replaced by plain bytes
        stream = io.BufferedReader(cast(io.RawIOBase, stream))
    return _lines(cast(io.BufferedReader, stream), name, encoding, decoder)


def _standard_input() -> BinaryIO:
    """A reader of our own: Python aborts if a thread still holds `sys.stdin` when it exits."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # replaced by something that is no file
        return sys.stdin.buffer


def _lines(
    stream: io.BufferedReader, name: str, encoding: str, decoder: codecs.IncrementalDecoder
) -> Iterator[str]:
    n_bytes = n_lines = 0  # read so far
    unfinished: list[str] = []  # pieces of a line that goes on in the next chunk
    failure: UnicodeDecodeError | None = None
    for chunk in _chunks(stream, name):
        state = decoder.getstate()
        try:
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                failure = error
                # The codec's `object` is what it had kept back, then the chunk: they end together.
                offset = n_bytes + len(chunk) - len(error.object) + error.start
                decoder.setstate(state)
                text = decoder.decode(chunk[: max(0, offset - n_bytes)])
        except UnicodeError as error:  # utf-16 or utf-32 without a byte order mark
            advice = f"Give the byte order as well: --encoding {encoding}-le"
            raise DataError(f"Cannot read {name}: {error}. {advice}.") from error
        if n_lines == 0 and not any(unfinished):
            text = text.removeprefix("\ufeff")
        first, *others = text.split("\n")
        unfinished.append(first)
        for other in others:
            yield "".join(unfinished).removesuffix("\r")
            unfinished = [other]
        n_bytes += len(chunk)
        n_lines += len(others)
        if failure:
            break
    line = "".join(unfinished)
    if failure:
        newline = "\n".encode(encoding, "replace")  # begins with a byte order mark in some
        in_line = len(f"\n{line}".encode(encoding, "replace")) - len(newline)
        raise DataError(
            f"{name}, line {n_lines + 1}: found the byte 0x{failure.object[failure.start]:02x} at "
            f"offset {in_line if n_lines else offset} of the line (offset {offset} of the text), "
            f"which is not {encoding} ({failure.reason}). Give the encoding of the text with "
            "--encoding, or put a replacement character there with --errors replace."
        ) from failure
    if line:
        yield line


def _chunks(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the bytes, unpacked if they begin as gzip does, and an empty chunk at the end."""
    try:
        packed = stream.peek(3).startswith(b"\x1f\x8b\x08")
        plain = gzip.GzipFile(fileobj=stream) if packed else stream
        while chunk := plain.read1(_CHUNK):
            yield chunk
        yield b""
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name} is damaged gzip: {error}. Fetch or pack it again.") from error
    except OSError as error:
        raise DataError(f"Cannot read {name}: {error.strerror}. Check the disk.") from error
    finally:
        if stream is not getattr(sys.stdin, "buffer", None):
            stream.close()
