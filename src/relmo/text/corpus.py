"""Find text files and stream their lines, compressed or not."""

import bz2
import codecs
import glob
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from relmo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 1 << 16
_BZIP2_STARTS = (
    b"1AY&SY",
    b"\x17rE8P\x90",
)  # bytes 4 to 9 of a file with a block, and of an empty file
_ERRORS = ("strict", "replace", "ignore", "backslashreplace")


def find_texts(arguments: Sequence[str]) -> list[str]:
    """Expand files, directories, patterns (`*`, `?`, `[]`, `**`) and "-" into a list of files.

    A directory means all files below it. Hidden files and directories are skipped unless they are
    named explicitly. A file that is not text raises an error only when it is read. The order is
    that of the arguments, sorted by path within each; a file named twice is listed once.
    """
    found: dict[str | Path, str] = {}
    for argument in arguments:
        if argument == "-":
            found["-"] = "-"
            continue
        files = [file for match in _matches(argument) for file in _files(match)]
        if not files:
            raise DataError(
                f"{argument!r} matches no file. Name files or directories that hold text, patterns "
                'in quotes such as "texts/**/*.txt", or - for standard input.'
            )
        for file in files:
            found.setdefault(file.resolve(), str(file))
    return list(found.values())


def _matches(argument: str) -> list[Path]:
    try:
        if argument and Path(argument).exists():  # a file name may contain brackets
            return [Path(argument)]
        # Unlike Path.glob this leaves hidden files out, as shells do.
        return sorted(map(Path, glob.glob(argument, recursive=True)))  # noqa: PTH207
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", error)
        raise DataError(f"Cannot look for {argument!r}: {reason}. Check the name.") from error


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    below = (file for file in path.rglob("*") if file.is_file())
    return sorted(f for f in below if not any(p[0] == "." for p in f.relative_to(path).parts))


def read_lines(
    source: str | Path,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    longest: int | None = None,
    advance: Callable[[int], object] | None = None,
    is_fixed: bool = False,
) -> Iterator[str]:
    r"""Read the lines of a file, or of standard input if `source` is "-".

    A line ends at `\n` alone; a `\r` before it and a byte order mark at the start are dropped.
    Blank lines are kept. Gzip, bzip2 and zstd are recognised by their content. Bytes that do not
    decode raise `DataError`, or are treated as Python's "replace", "ignore" and "backslashreplace"
    do. The file is opened at once and read lazily.

    Args:
        source: the file, or "-".
        encoding: of the text.
        errors: what to do with bytes that do not decode.
        longest: cut lines that are longer than this many characters, at a space if one is near,
            so that memory is bounded.
        advance: called with the number of (compressed) bytes of each read from the file.
        is_fixed: the format of the file fixes its encoding, so errors advise no other.
    """
    if errors not in _ERRORS:
        raise ConfigError(
            f"Unknown value of errors, {errors!r}: expected one of {', '.join(_ERRORS)}.",
            settings=["errors"],
        )
    try:
        if codecs.lookup(encoding).name in ("idna", "punycode"):
            raise LookupError("these are for names of hosts")
        "a".encode(encoding)  # refuses codecs that are not for text, such as "hex"
        decoder = codecs.getincrementaldecoder(encoding)(errors)
    except (LookupError, ValueError):
        expected = "a text encoding of Python's, such as utf-8, latin-1, cp1252 or utf-16"
        raise ConfigError(
            f"Unknown encoding {encoding!r}: expected {expected}.", settings=["encoding"]
        ) from None
    name = "standard input" if source == "-" else str(source)
    stream = open_bytes(source, advance)
    lines = _closing(stream, _lines(stream, name, encoding, decoder, longest, is_fixed))
    next(lines)
    return lines


def _closing(stream: io.BufferedReader, lines: Iterator[str]) -> Iterator[str]:
    """Yield an empty string, then the lines; close the stream, whether they are read or not.

    A generator that has not begun would leave the stream open; the empty string is its beginning.
    """
    try:
        yield ""
        yield from lines
    finally:
        _close(stream)


def _close(stream: io.BufferedReader) -> None:
    if stream is not getattr(sys.stdin, "buffer", None):
        stream.close()


def open_bytes(
    source: str | Path, advance: Callable[[int], object] | None = None
) -> io.BufferedReader:
    """Open a file, or standard input if `source` is "-", in binary mode."""
    if source == "-" and not sys.stdin:
        raise DataError("Standard input is closed. Name a file, or pipe the text in.")
    try:
        if source == "-":
            stream = _standard_input()
        elif advance:
            return io.BufferedReader(_CountedFile(source, advance))
        else:
            stream = Path(source).open("rb")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", error)
        raise DataError(f"Cannot read {source}: {reason}. Check the name of the file.") from error
    if not hasattr(stream, "peek"):  # standard input replaced by plain bytes
        stream = io.BufferedReader(cast(io.RawIOBase, stream))
    return cast(io.BufferedReader, stream)


class _CountedFile(io.FileIO):
    """A file that reports how many bytes are read from it."""

    def __init__(self, path: str | Path, advance: Callable[[int], object]) -> None:
        super().__init__(path)
        self._advance = advance

    def readinto(self, buffer: "WriteableBuffer") -> int:
        n = super().readinto(buffer)
        self._advance(n)
        return n


def _standard_input() -> BinaryIO:
    """Open standard input anew: Python aborts if a thread still holds `sys.stdin` at exit."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # replaced by something that is no file
        return sys.stdin.buffer


def _lines(
    stream: io.BufferedReader,
    name: str,
    encoding: str,
    decoder: codecs.IncrementalDecoder,
    longest: int | None,
    is_fixed: bool,
) -> Iterator[str]:
    n_bytes = n_lines = 0  # read so far
    n_cut = 0  # bytes of the current line in pieces that were cut off
    unfinished: list[str] = []  # pieces of a line that goes on in the next chunk
    failure: UnicodeDecodeError | None = None
    for chunk in _chunks(stream, name):
        state = decoder.getstate()
        try:
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                failure = error
                # The error's `object` is bytes kept from before plus the chunk: both end together.
                offset = n_bytes + len(chunk) - len(error.object) + error.start
                decoder.setstate(state)
                text = decoder.decode(chunk[: max(0, offset - n_bytes)])
        except UnicodeError as error:  # utf-16 or utf-32 without a byte order mark
            advice = f"Give the byte order as well, such as {encoding}-le"
            raise DataError(
                f"Cannot read {name}: {error}. {advice}.", settings=["encoding"]
            ) from error
        if n_lines == 0 and not any(unfinished):
            text = text.removeprefix("\ufeff")
        first, *others = text.split("\n")
        unfinished.append(first)
        for other in others:
            yield "".join(unfinished).removesuffix("\r")
            unfinished, n_cut = [other], 0
        n_bytes, n_lines = n_bytes + len(chunk), n_lines + len(others)
        if failure:
            break
        if longest and sum(map(len, unfinished)) >= longest:
            piece, rest = _cut("".join(unfinished))
            yield piece
            unfinished, n_cut = [rest], n_cut + _n_bytes(piece, encoding)
    line = "".join(unfinished)
    if failure:
        in_line = n_cut + _n_bytes(line, encoding) if n_lines else offset
        where = f"offset {in_line} of the line (offset {offset} of the text)"
        line = f"{name}, line {n_lines + 1}"
        raise _undecodable(line, where, encoding, failure, is_fixed) from failure
    if line:
        yield line


def _undecodable(
    line: str, where: str, encoding: str, error: UnicodeDecodeError, is_fixed: bool
) -> DataError:
    found = (
        f"{line}: found the byte 0x{error.object[error.start]:02x} at {where}, which is not "
        f"{encoding} ({error.reason})."
    )
    if is_fixed:
        return DataError(f"{found} Check that it is the right file, and convert it to {encoding}.")
    return DataError(
        f"{found} Give the right encoding of the text, or errors=replace to put a replacement "
        "character there.",
        settings=["encoding", "errors"],
    )


def _cut(line: str) -> tuple[str, str]:
    """Cut after the last space if it is in the second half, else at the end."""
    place = line.rfind(" ") + 1
    return (line[:place], line[place:]) if place > len(line) // 2 else (line, "")


def _n_bytes(text: str, encoding: str) -> int:
    newline = "\n".encode(encoding, "replace")  # begins with a byte order mark in some
    return len(f"\n{text}".encode(encoding, "replace")) - len(newline)


def _chunks(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the bytes, decompressed if need be, and an empty chunk at the end."""
    packing = ""
    try:
        start = stream.peek(10)
        if start.startswith(b"\x1f\x8b\x08"):
            packing = "gzip"
            yield from iter(partial(gzip.GzipFile(fileobj=stream).read1, _CHUNK), b"")
        elif start.startswith(b"BZh") and start[4:10] in _BZIP2_STARTS:
            packing = "bzip2"
            yield from iter(partial(bz2.BZ2File(stream).read1, _CHUNK), b"")
        elif start.startswith(b"\x28\xb5\x2f\xfd"):
            packing = "zstd"
            yield from _unpack_zstd(stream, name)
        else:
            yield from iter(partial(stream.read1, _CHUNK), b"")
        yield b""
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"Cannot read {name}: {error.strerror}. Check the disk.") from error
        raise DataError(
            f"{name} is damaged {packing}: {error}. Download or compress it again."
        ) from error
    finally:
        _close(stream)


def _unpack_zstd(stream: io.BufferedReader, name: str) -> Iterator[bytes]:
    """Yield the decompressed frames; damage is raised as an `EOFError`."""
    start_frame, damage = _zstd(name)
    frame = start_frame()
    # In small pieces: one byte may decompress to tens of thousands.
    while packed := stream.read1(256):
        while packed:
            if frame.eof:
                frame = start_frame()
            try:
                unpacked = frame.decompress(packed)
            except damage as error:
                raise EOFError(error) from error
            for start in range(0, len(unpacked), _CHUNK):
                yield unpacked[start : start + _CHUNK]
            packed = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it ends in the middle of a frame")


def _zstd(name: str) -> tuple[Callable[[], Any], type[Exception]]:
    """Return what builds a decompressor for a frame, and the error it raises on damage."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdDecompressor, zstd.ZstdError
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            f"{name} is compressed by zstd. Reading it needs the package zstandard, which is not "
            "installed. Install it with: pip install 'relmo[zstd]'"
        ) from error
    return zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError
