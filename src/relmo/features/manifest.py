"""The manifest of data that is written part by part: what it is, what is there, is it whole.

A directory holds some tables, each a file (or several) of rows of one shape and type, one after
the other, little-endian, without a header. `manifest.json` says what the rows are: the identity
of what made them and its settings; which tables there are to be; and which parts of them are
complete, with their ranges of rows and their checksums. A part is listed only after its rows are
safely on disk, so whatever is not listed may be garbage that a killed process left behind.

The store of features uses it; embedding a corpus in shards needs the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relmo import __version__
from relmo.errors import FormatError
from relmo.files import written_atomically
from relmo.progress import progress

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
# By name, as NumPy spells them; "bytes16" are digests.
DTYPES = {"float16": "<f2", "float32": "<f4", "int32": "<i4", "int64": "<i8", "bytes16": "S16"}
_MAX_FILE_BYTES = 1 << 28  # of a manifest
_MAX_SIZE = 1 << 62  # bytes of a table
_MAX_DIMENSIONS = 8
_CHUNK_BYTES = 1 << 24
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Table:
    """Rows of one shape and type.

    Attributes:
        name: what the rows are.
        dtype: one of `DTYPES`.
        shape: of one row; () is a number.
        n_rows: how many there are when the table is complete.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_rows: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(DTYPES[self.dtype]).itemsize * math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return self.row_bytes * self.n_rows

    @classmethod
    def from_dict(cls, values: Any) -> Table:
        """The inverse of `dataclasses.asdict`.

        Raises:
            FormatError: Something is missing, of a wrong type or out of bounds.
        """
        found = _fields(values, cls, "table")
        shape = found["shape"]
        if not isinstance(shape, list | tuple) or len(shape) > _MAX_DIMENSIONS:
            raise FormatError(f"a table's shape is {shape!r:.80}, expected a short list of numbers")
        table = cls(
            _name(found["name"]),
            _text(found["dtype"], "dtype"),
            tuple(_count(n, "dimension") for n in shape),
            _count(found["n_rows"], "n_rows"),
        )
        if table.dtype not in DTYPES:
            raise FormatError(f"dtype is {table.dtype!r:.40}, expected one of {', '.join(DTYPES)}")
        if table.n_bytes > _MAX_SIZE:
            raise FormatError(f"table {table.name} is of {table.n_bytes} bytes: too large")
        return table


@dataclass(frozen=True)
class Part:
    """Complete rows of a table. Parts of one file follow each other in it, in their order.

    Attributes:
        table: its name.
        file: the file's name, in the directory of the manifest.
        start: number of the first row.
        stop: one more than that of the last.
        sha256: checksum of the bytes of these rows.
    """

    table: str
    file: str
    start: int
    stop: int
    sha256: str

    @classmethod
    def from_dict(cls, values: Any) -> Part:
        """The inverse of `dataclasses.asdict`.

        Raises:
            FormatError: Something is missing, of a wrong type or out of bounds.
        """
        found = _fields(values, cls, "part")
        part = cls(
            _name(found["table"]),
            _name(found["file"]),
            _count(found["start"], "start"),
            _count(found["stop"], "stop"),
            _text(found["sha256"], "sha256"),
        )
        if part.start > part.stop:
            raise FormatError(f"a part goes from row {part.start} to {part.stop}")
        if not _SHA256.fullmatch(part.sha256):
            raise FormatError(f"sha256 is {part.sha256!r:.80}, expected 64 hexadecimal digits")
        if part.file == MANIFEST:
            raise FormatError(f"a part lies in {MANIFEST}")
        return part


@dataclass(frozen=True)
class Manifest:
    """What a directory of tables holds.

    Attributes:
        kind: of data, such as "features".
        identity: of what made the rows, a model's fingerprint for instance.
        settings: all else that the rows depend on; numbers, strings, or lists of them.
        tables: what there is to be.
        parts: what there is, without gaps from the first row of each table.
        relmo_version: that wrote it.
        format_version: of this file.
    """

    kind: str
    identity: str
    settings: Mapping[str, Any]
    tables: tuple[Table, ...]
    parts: tuple[Part, ...] = ()
    relmo_version: str = __version__
    format_version: int = FORMAT_VERSION

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {**asdict(self), "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, values: Any) -> Manifest:
        """The inverse of `as_dict`.

        Raises:
            FormatError: Something is missing, of a wrong type, out of bounds or contradictory.
        """
        version = values.get("format_version") if isinstance(values, dict) else None
        if version != FORMAT_VERSION:
            raise FormatError(f"format_version is {version!r:.40}, expected {FORMAT_VERSION}")
        found = _fields(values, cls, "manifest")
        if not isinstance(found["settings"], dict):
            raise FormatError("settings are not an object of JSON")
        for name in ("tables", "parts"):
            if not isinstance(found[name], list | tuple):
                raise FormatError(f"{name} are not a list")
        manifest = cls(
            _text(found["kind"], "kind"),
            _text(found["identity"], "identity"),
            found["settings"],
            tuple(map(Table.from_dict, found["tables"])),
            tuple(map(Part.from_dict, found["parts"])),
            _text(found["relmo_version"], "relmo_version"),
        )
        manifest._check_ranges()
        return manifest

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of a directory; its files are not looked at.

        Raises:
            FormatError: It is missing, damaged or of another version.
        """
        path = directory / MANIFEST
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise FormatError("it is too large to be a manifest")
            return cls.from_dict(json.loads(path.read_bytes()))
        except OSError as error:
            raise FormatError(f"Cannot read {path}: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path} is damaged: it is not JSON ({error}).") from error
        except FormatError as error:
            raise FormatError(f"{path} is damaged: {error}.") from error

    def write(self, directory: Path) -> None:
        """Write it, in full or not at all."""
        text = json.dumps(self.as_dict(), indent=1) + "\n"
        with written_atomically(directory / MANIFEST) as partial:
            partial.write_text(text, encoding="utf-8")

    def with_parts(self, *parts: Part) -> Manifest:
        """The same with more parts."""
        manifest = replace(self, parts=(*self.parts, *parts))
        manifest._check_ranges()
        return manifest

    @property
    def n_bytes(self) -> int:
        """Bytes of all tables when they are complete."""
        return sum(table.n_bytes for table in self.tables)

    @property
    def is_complete(self) -> bool:
        """Whether every row of every table is there."""
        return all(self.n_complete(table.name) == table.n_rows for table in self.tables)

    def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            FormatError: There is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise FormatError(f"there is no table {name!r:.80}")

    def n_complete(self, name: str) -> int:
        """How many rows of a table are there."""
        return max((part.stop for part in self.parts if part.table == name), default=0)

    def file_sizes(self) -> dict[str, int]:
        """How many bytes of each file are listed."""
        sizes: dict[str, int] = {}
        for part in self.parts:
            n_bytes = (part.stop - part.start) * self.table(part.table).row_bytes
            sizes[part.file] = sizes.get(part.file, 0) + n_bytes
        return sizes

    def check_sizes(self, directory: Path) -> None:
        """Check that each file is at least as long as its parts; exactly, once all is complete.

        Raises:
            FormatError: One is not.
        """
        for name, expected in self.file_sizes().items():
            path = directory / name
            found = path.stat().st_size if path.is_file() else 0
            if found < expected or (self.is_complete and found > expected):
                raise FormatError(f"{path} is of {found:,} bytes, expected {expected:,}.")

    def check_sums(self, directory: Path, tables: frozenset[str] | None = None) -> None:
        """Read parts, of some tables or of all, and compare their checksums.

        Raises:
            FormatError: One is wrong.
        """
        chosen: list[tuple[Part, int, int]] = []  # with first byte and number of bytes
        offsets: dict[str, int] = {}
        for part in self.parts:
            start = offsets.get(part.file, 0)
            n_bytes = (part.stop - part.start) * self.table(part.table).row_bytes
            offsets[part.file] = start + n_bytes
            if tables is None or part.table in tables:
                chosen.append((part, start, n_bytes))
        total = sum(n_bytes for _, _, n_bytes in chosen)
        with progress("Comparing checksums", total, "bytes") as advance:
            for part, start, n_bytes in chosen:
                path = directory / part.file
                if _sha256(path, start, n_bytes) != part.sha256:
                    rows = f"rows {part.start} to {part.stop}"
                    raise FormatError(f"{path} is damaged: {rows} have another checksum.")
                advance(n_bytes)

    def _check_ranges(self) -> None:
        tables = {table.name: table for table in self.tables}
        if len(tables) < len(self.tables):
            raise FormatError("two tables have the same name")
        n_complete = dict.fromkeys(tables, 0)
        table_of: dict[str, str] = {}
        for part in self.parts:
            if table_of.setdefault(part.file, part.table) != part.table or part.table not in tables:
                raise FormatError(f"{part.file} holds something else than one of the tables")
            if part.start != n_complete[part.table] or part.stop > tables[part.table].n_rows:
                raise FormatError(
                    f"a part of {part.table} goes from row {part.start} to {part.stop}, expected "
                    f"from {n_complete[part.table]} to at most {tables[part.table].n_rows}"
                )
            n_complete[part.table] = part.stop


def _sha256(path: Path, start: int, n_bytes: int) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            file.seek(start)
            while n_bytes and (chunk := file.read(min(n_bytes, _CHUNK_BYTES))):
                digest.update(chunk)
                n_bytes -= len(chunk)
    except OSError as error:
        raise FormatError(f"Cannot read {path}: {error.strerror}.") from error
    return digest.hexdigest()


def _fields(values: Any, kind: type, what: str) -> dict[str, Any]:
    names = kind.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    if not isinstance(values, dict) or values.keys() != names:
        found = ", ".join(map(str, values)) if isinstance(values, dict) else repr(values)
        raise FormatError(f"a {what} has {found:.100}, expected {', '.join(names)}")
    return values


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{what} is {value!r:.80}, expected a string")
    return value


def _name(value: Any) -> str:
    """A name that cannot lead out of the directory."""
    if not _PLAIN_NAME.fullmatch(_text(value, "a name")):
        raise FormatError(f"{value!r:.80} is not the name of a file or table")
    return str(value)


def _count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_SIZE:
        raise FormatError(f"{what} is {value!r:.80}, expected a number from 0")
    return value
