"""The files of a model: in a directory, in a zip archive, or given one by one.

Readers see only names and bytes. Archive members are read in place, never extracted. An archive
with unsafe names or implausible sizes is refused.
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
MAX_RATIO = 200  # weights hardly compress; more than this is a zip bomb

# Which error zipfile raises for a damaged archive depends on where the damage is.
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
        """Path of the file, or None if it is not a file on disk."""
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
        """Path of the file."""
        return self._paths[name]


class Archive:
    """A zip archive, read in place."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except DAMAGED as error:
            raise FormatError(
                f"{path} is not a readable zip archive ({error}): download it again."
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
            raise FormatError(
                f"{self.where} has a member named {name!r}, outside of the archive. Refused."
            )
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
            f"{self.where}: member {name!r} is damaged ({why}): download the archive again."
        )

    def path(self, name: str) -> None:
        """None: members of an archive are not files on disk."""


def is_there(path: Path) -> bool:
    """Whether the path exists; False for a name that is too long for the system."""
    try:
        return path.exists()
    except OSError:
        return False


def open_model_files(path: Path) -> ModelFiles:
    """Open a directory or a zip archive."""
    try:
        if path.is_dir():
            return Files({p.name: p for p in path.iterdir() if p.is_file()}, str(path))
        if path.is_file() and zipfile.is_zipfile(path):  # is_zipfile would block on a pipe
            return Archive(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    raise FormatError(
        f"{path} is neither a model directory, a zip archive nor HDF5 weights. Give one of these; "
        "HDF5 weights of bilm-tf or AllenNLP come with their options file.",
        settings=["model", "options"],
    )


def largest_unpacked(n_bytes: int) -> int:
    """Maximum plausible size of so many compressed bytes; more is a zip bomb."""
    return min(MAX_WEIGHTS_BYTES, MAX_RATIO * max(n_bytes, 1 << 20))


def _unreadable(path: Path, error: OSError) -> FormatError:
    return FormatError(f"{path} cannot be read: {error.strerror or error}.")


def read_bytes(source: ModelFiles, name: str, limit: int) -> bytes:
    """Read a file, unless it is larger than `limit`."""
    size = source.size(name)
    if size > limit:
        raise FormatError(f"{source.where}: {name} has {size:,} bytes; expected at most {limit:,}.")
    with source.open(name) as stream:
        return stream.read(size + 1)  # memory for all that is asked for is taken at once


def read_text_bytes(source: ModelFiles, name: str) -> bytes:
    """Read a text file, decompressed if it is gzipped."""
    data = read_bytes(source, name, MAX_TEXT_BYTES)
    if not data.startswith(GZIP_SIGNATURE):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            text = stream.read(MAX_TEXT_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(
            f"{source.where}: {name} is damaged ({error}): download it again."
        ) from None
    if len(text) > MAX_TEXT_BYTES:
        raise FormatError(
            f"{source.where}: {name} unpacks to over {MAX_TEXT_BYTES:,} bytes. Refused."
        )
    return text


def read_text_head(source: ModelFiles, name: str, n: int) -> bytes:
    """First bytes of a text file, decompressed if it is gzipped; none if that fails."""
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
            continue  # not JSON, but begins with a brace
        if isinstance(value, dict) and all(key in value for key in keys):
            found[name] = value
    return found
