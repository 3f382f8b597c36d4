"""The directory of a store: one folder per data set, locks, sizes, and which of them goes first.

    DIRECTORY/.lock                        held while folders come and go; never for long
    DIRECTORY/NAME/lock                    held by the process that fills or checks the data set
    DIRECTORY/NAME/reader-*.lock           held by each process that reads it
    DIRECTORY/NAME/manifest.json, *.table  the data set; the manifest's time is that of its last use
    DIRECTORY/NAME/verified                all checksums were right once

The system releases the locks of a process that ends, however it ends.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from relmo.errors import ConfigError, DataError, FormatError
from relmo.features.manifest import MANIFEST, Manifest
from relmo.progress import progress

GIGABYTE = 10**9
DEFAULT_GIGABYTES = 30.0
BOUND_VARIABLE = "RELMO_CACHE_GB"
TABLE_SUFFIX = ".table"
VERIFIED = "verified"
_POLL_SECONDS = 0.1
_NAME = re.compile(r"[0-9a-f]{32}")
_OURS = re.compile(
    rf"{re.escape(MANIFEST)}|.+\{TABLE_SUFFIX}|{VERIFIED}|lock|reader-.+\.lock"
    rf"|\.{re.escape(MANIFEST)}\.partial-.+"
)


@dataclass(frozen=True)
class Dataset:
    """A data set in a store.

    Attributes:
        name: of its folder.
        features: name of the features whose vectors it holds; "" if its manifest is damaged.
        identity: of these features.
        settings: the rest of what the manifest says: dtype, n_layers, dim, n_sentences, n_tokens.
        n_bytes: on disk.
        planned_bytes: when it is complete.
        last_used: seconds since 1970.
        is_complete: every vector is there.
        in_use: a process fills or reads it now.
    """

    name: str
    features: str
    identity: str
    settings: dict[str, Any]
    n_bytes: int
    planned_bytes: int
    last_used: float
    is_complete: bool
    in_use: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)


class Reader:
    """Says, as long as it is open, that a process reads a data set."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"reader-{os.getpid()}-{secrets.token_hex(4)}.lock"
        self._lock = _try_lock(self._path) if os.access(folder, os.W_OK) else None
        self._pid = os.getpid()

    def close(self) -> None:
        """Say that it is over."""
        if self._lock is not None and self._pid == os.getpid():  # not in a child that was forked
            self._lock.release()
            self._lock = None
            with suppress(OSError):
                self._path.unlink()


def bound_from_environment() -> int:
    """How many bytes a store may take: RELMO_CACHE_GB gigabytes, or 30."""
    text = os.environ.get(BOUND_VARIABLE) or str(DEFAULT_GIGABYTES)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise ConfigError(f"{BOUND_VARIABLE} is {text!r:.40}; expected a number of gigabytes.")
    return int(gigabytes * GIGABYTE)


class DatasetDirectory:
    """The folders of a store.

    Attributes:
        path: where they are.
        max_bytes: what all of them may take.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes

    @contextmanager
    def locked(self, name: str) -> Iterator[Path]:
        """The folder of a data set, made if need be, for this process alone; waits for others."""
        if (self.path / name).is_dir() and not os.access(self.path / name, os.W_OK):
            yield self.path / name  # of somebody else, to be read only: nobody here can change it
            return
        lock = self._try_folder(name)
        if lock is None:
            with progress("Waiting for a process that computes the same features"):
                while (lock := self._try_folder(name)) is None:
                    time.sleep(_POLL_SECONDS)
        try:
            yield self.path / name
        finally:
            lock.release()

    def datasets(self) -> list[Dataset]:
        """What is there, the least recently used first. Other files are left alone."""
        if not self.path.is_dir():
            return []
        try:
            with self._all_locked():
                return self._datasets()
        except DataError:  # a store that may only be read
            return self._datasets() if self.path.is_dir() else []

    def make_room(self, n_bytes: int, name: str) -> None:
        """Remove data sets, the least recently used first, until one more fits.

        Args:
            n_bytes: of the data set when it is complete.
            name: of that data set, which stays.

        Raises:
            DataError: It cannot fit.
        """
        size, bound = show_bytes(n_bytes), show_bytes(self.max_bytes)
        advice = f"Raise the bound ({BOUND_VARIABLE}), store float16, or take fewer sentences"
        if n_bytes > self.max_bytes:
            raise DataError(
                f"The features of this data set take {size}, but the store in {self.path} may take "
                f"{bound}. {advice}."
            )
        with self._all_locked():
            others = [dataset for dataset in self._datasets() if dataset.name != name]
            # What is being filled will take what it has planned.
            taken = sum(d.planned_bytes if d.in_use else d.n_bytes for d in others)
            for dataset in others:
                if taken + n_bytes <= self.max_bytes:
                    return
                if self._remove(dataset.name):
                    taken -= dataset.n_bytes
        if taken + n_bytes > self.max_bytes:
            raise DataError(
                f"The features of this data set take {size}, but the store in {self.path} may take "
                f"{bound}, of which {show_bytes(taken)} are in use by other processes. Wait for "
                f"them. Or: {advice}."
            )

    def remove(self, name: str) -> bool:
        """Remove a data set, unless it is in use; whether it is gone."""
        with self._all_locked():
            return self._remove(name)

    @contextmanager
    def _all_locked(self) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock")
            lock.acquire()
        except OSError as error:
            raise DataError(
                f"Cannot keep features in {self.path}: {error.strerror or error}. Choose a "
                "directory that can be written."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _try_folder(self, name: str) -> FileLock | None:
        # Folders are made, locked and removed under the lock of all, so none goes in between.
        with self._all_locked():
            folder = self.path / name
            try:
                folder.mkdir(exist_ok=True)
                return _try_lock(folder / "lock")
            except OSError as error:
                raise DataError(
                    f"Cannot keep features in {folder}: {error.strerror or error}. Remove it, or "
                    "choose another directory."
                ) from error

    def _datasets(self) -> list[Dataset]:
        folders = (p for p in self.path.iterdir() if _NAME.fullmatch(p.name) and p.is_dir())
        return sorted(map(_describe, folders), key=lambda dataset: dataset.last_used)

    def _remove(self, name: str) -> bool:
        folder = self.path / name
        if not folder.is_dir():
            return True
        if _in_use(folder):
            return False
        wipe(folder)
        with suppress(OSError):
            (folder / "lock").unlink()
            folder.rmdir()  # stays if somebody else put something there
        return not (folder / MANIFEST).exists()


def wipe(folder: Path) -> None:
    """Remove a data set from its folder; the lock, and what others put there, stay."""
    # The manifest goes first: tables without one are known to be rubbish.
    for path in sorted(folder.iterdir(), key=lambda path: path.name != MANIFEST):
        if _OURS.fullmatch(path.name) and path.name != "lock":
            with suppress(OSError):
                path.unlink()


def show_bytes(n_bytes: int) -> str:
    """A size for people."""
    if n_bytes >= GIGABYTE:
        return f"{n_bytes / GIGABYTE:,.1f} GB"
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 100_000 else f"{n_bytes / 1e3:,.1f} kB"


def _describe(folder: Path) -> Dataset:
    n_bytes = _folder_bytes(folder)
    in_use = _in_use(folder)
    try:
        manifest = Manifest.read(folder)
        last_used = (folder / MANIFEST).stat().st_mtime
    except (FormatError, OSError):
        last_used = folder.stat().st_mtime
        return Dataset(folder.name, "", "", {}, n_bytes, n_bytes, last_used, False, in_use)
    settings = dict(manifest.settings)
    return Dataset(
        folder.name,
        str(settings.pop("name", "")),
        manifest.identity,
        settings,
        n_bytes,
        max(n_bytes, manifest.n_bytes),
        last_used,
        manifest.is_complete,
        in_use,
    )


def _folder_bytes(folder: Path) -> int:
    n_bytes = 0
    for path in folder.iterdir():
        with suppress(OSError):  # gone since
            n_bytes += path.stat().st_size
    return n_bytes


def _in_use(folder: Path) -> bool:
    for path in (folder / "lock", *folder.glob("reader-*.lock")):
        lock = _try_lock(path)
        if lock is None:
            return True
        lock.release()
        if path.name != "lock":  # of a process that was killed
            with suppress(OSError):
                path.unlink()
    return False


def _try_lock(path: Path) -> FileLock | None:
    lock = FileLock(path, thread_local=False)  # may be released by another thread, or when deleted
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):  # held by another process, or in a folder of another user
        return None
    return lock
