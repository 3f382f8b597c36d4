"""Where a model's files lie: a folder, a zip archive, or paths named one by one.

Readers see names and bytes only. Archive members are read in place, never extracted, and an archive
with names or sizes that no model has is refused as a whole.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import lzma
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from relmo.errors import FormatError

MAX_WEIGHTS_BYTES = 16 << 30
MAX_TEXT_BYTES = 256 << 20
MAX_JSON_BYTES = 8 << 20
MAX_MEMBERS = 10_000
MAX_RATIO = 200  # weights hardly compress; more than this is a bomb

# What zipfile makes of a damaged archive depends on where in it the damage is.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    OSError,
    ValueError,
)

GZIP_SIGNATURE = b"\x1f\x8b"


class ModelFiles(Protocol):
    """A set of named files."""

    where: str  # for error messages

    def names(self) -> list[str]:
        """The files' names, without folders."""
        ...

    def size(self, name: str) -> int:
        """Bytes in a file."""
        ...

    def head(self, name: str, n: int) -> bytes:
        """A file's first n bytes."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A file's bytes, seekable."""
        ...

    def path(self, name: str) -> Path | None:
        """Where the file lies on disk, if it does."""
        ...


class Files:
    """Files on disk, by name."""

    def __init__(self, paths: Mapping[str, Path], where: str) -> None:
        self.where = where
        self._paths = dict(paths)

    def names(self) -> list[str]:
        """The files' names, without folders."""
        return sorted(self._paths)

    def size(self, name: str) -> int:
        """Bytes in a file."""
        return self._paths[name].stat().st_size

    def head(self, name: str, n: int) -> bytes:
        """A file's first n bytes."""
        with self.open(name) as stream:
            return stream.read(n)

    def open(self, name: str) -> BinaryIO:
        """A file's bytes, seekable."""
        try:
            return self._paths[name].open("rb")
        except OSError as error:
            raise _unreadable(self._paths[name], error) from None

    def path(self, name: str) -> Path:
        """Where the file lies on disk."""
        return self._paths[name]


class Archive:
    """A zip archive, read in place."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except DAMAGED as error:
            raise FormatError(
                f"{path} is not a readable zip archive ({error}): fetch it again."
            ) from None
        members = [m for m in self._zip.infolist() if not m.is_dir()]
        if len(members) > MAX_MEMBERS:
            raise FormatError(f"{path} has {len(members)} members; a model has a handful. Refused.")
        for member in members:
            self._check(member)
        self._members = {PurePosixPath(m.filename).name: m for m in members}
        if len(self._members) < len(members):
            raise FormatError(
                f"{path} holds several files of the same name: unpack it yourself first."
            )

    def _check(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in parts[0]:
            raise FormatError(f"{self.where} has a member named {name!r}, outside of it. Refused.")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise FormatError(f"{self.where}: member {name!r} is a symbolic link. Refused.")
        if member.file_size > largest_unpacked(member.compress_size):
            raise FormatError(
                f"{self.where}: member {name!r} would grow from {member.compress_size:,} to "
                f"{member.file_size:,} bytes, which no model does. Refused."
            )
        if member.flag_bits & 1:
            raise FormatError(
                f"{self.where}: member {name!r} is encrypted: unpack it yourself first."
            )

    def names(self) -> list[str]:
        """The members' names, without folders."""
        return sorted(self._members)

    def size(self, name: str) -> int:
        """Bytes in a member, unpacked."""
        return self._members[name].file_size

    def head(self, name: str, n: int) -> bytes:
        """A member's first n bytes."""
        try:
            with self._zip.open(self._members[name]) as stream:
                return stream.read(n)
        except DAMAGED as error:
            raise self._damaged(name, error) from None

    def open(self, name: str) -> BinaryIO:
        """A member's bytes, seekable."""
        size = self.size(name)
        data = self.head(name, size + 1)
        if len(data) != size:
            raise self._damaged(name, f"{len(data):,} bytes instead of {size:,}")
        return io.BytesIO(data)

    def _damaged(self, name: str, why: object) -> FormatError:
        return FormatError(
            f"{self.where}: member {name!r} is damaged ({why}): fetch the archive again."
        )

    def path(self, name: str) -> None:
        """Members do not lie on disk."""


def is_there(path: Path) -> bool:
    """Whether something lies there. What cannot even be asked for, a name too long, does not."""
    try:
        return path.exists()
    except OSError:
        return False


def open_model_files(path: Path) -> ModelFiles:
    """A folder's or an archive's files; which of the two is seen from the content."""
    try:
        if path.is_dir():
            return Files({p.name: p for p in path.iterdir() if p.is_file()}, str(path))
        if path.is_file() and zipfile.is_zipfile(path):  # asked of a pipe, it would wait
            return Archive(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    raise FormatError(
        f"{path} is neither a model directory nor a zip archive. A pair of files of bilm-tf or "
        "AllenNLP is loaded with relmo.load(options=..., weights=...)."
    )


def largest_unpacked(n_bytes: int) -> int:
    """What so many bytes of a model may grow to; whatever grows more is a bomb."""
    return min(MAX_WEIGHTS_BYTES, MAX_RATIO * max(n_bytes, 1 << 20))


def _unreadable(path: Path, error: OSError) -> FormatError:
    return FormatError(f"{path} cannot be read: {error.strerror or error}.")


def read_bytes(source: ModelFiles, name: str, limit: int) -> bytes:
    """A whole file, unless it is larger than anything sensible."""
    size = source.size(name)
    if size > limit:
        raise FormatError(
            f"{source.where}: {name} has {size:,} bytes; at most {limit:,} make sense."
        )
    with source.open(name) as stream:
        return stream.read(size + 1)  # memory for all that is asked for is taken at once


def read_text_bytes(source: ModelFiles, name: str) -> bytes:
    """A text file, unpacked where it is gzipped."""
    data = read_bytes(source, name, MAX_TEXT_BYTES)
    if not data.startswith(GZIP_SIGNATURE):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            text = stream.read(MAX_TEXT_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{source.where}: {name} is damaged ({error}): fetch it again.") from None
    if len(text) > MAX_TEXT_BYTES:
        raise FormatError(
            f"{source.where}: {name} unpacks to over {MAX_TEXT_BYTES:,} bytes. Refused."
        )
    return text


def read_text_head(source: ModelFiles, name: str, n: int) -> bytes:
    """A text file's first bytes, unpacked where it is gzipped; none where that cannot be done."""
    head = source.head(name, 4096)
    if head.startswith(GZIP_SIGNATURE):
        try:
            head = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, n)
        except zlib.error:
            return b""
    return head.removeprefix(codecs.BOM_UTF8)[:n]


def read_json(source: ModelFiles, name: str) -> Any:
    """A JSON file's value."""
    try:
        return json.loads(read_bytes(source, name, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source.where}: {name} is not JSON ({error}).") from None


def find_json(source: ModelFiles, *keys: str) -> dict[str, dict[str, Any]]:
    """The JSON objects among the files that have all these keys, by file name."""
    found = {}
    for name in source.names():
        head = source.head(name, 64).removeprefix(codecs.BOM_UTF8).lstrip()
        if source.size(name) > MAX_JSON_BYTES or not head.startswith(b"{"):
            continue
        try:
            value = json.loads(read_bytes(source, name, MAX_JSON_BYTES))
        except (ValueError, RecursionError):
            continue  # something else that begins with a brace
        if isinstance(value, dict) and all(key in value for key in keys):
            found[name] = value
    return found
