"""What relmo keeps in the user's cache directory: listed, and cleared on demand.

features  vectors of data sets (`features.store`); the least recently used go by themselves
corpora   text that was prepared for pre-training; prepared again when it is needed
models    published models that were downloaded
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from relmo.errors import ConfigError, DataError
from relmo.features.datasets import Dataset, DatasetDirectory, bound_from_environment
from relmo.formats.published import PUBLISHED, cache_directory

KINDS = ("features", "corpora", "models")
COMPUTED = KINDS[:2]  # that relmo makes again by itself, without a network
_SHARD = re.compile(r"([0-9a-f]{32})-\d+\.safetensors")
_MIN_PREFIX = 4
_DAY = 86_400


@dataclass(frozen=True)
class CacheEntry:
    """Something that is kept.

    Attributes:
        kind: one of `KINDS`.
        name: of a model; a hash of everything else.
        description: for people.
        n_bytes: on disk.
        last_used: seconds since 1970.
        is_complete: False of features whose computation was stopped, and resumes next time.
        in_use: by a process that runs now. Whether prepared text is, is known on Linux only.
    """

    kind: str
    name: str
    description: str
    n_bytes: int
    last_used: float
    is_complete: bool = True
    in_use: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them; the time as ISO 8601 has it."""
        moment = datetime.fromtimestamp(self.last_used, timezone.utc)
        return {**asdict(self), "last_used": moment.isoformat(timespec="seconds")}


@dataclass(frozen=True)
class CacheContents:
    """All that is kept.

    Attributes:
        directory: where.
        max_feature_bytes: what all features together may take.
        entries: by kind, the most recently used first.
    """

    directory: str
    max_feature_bytes: int
    entries: tuple[CacheEntry, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.n_bytes for entry in self.entries)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        entries = [entry.as_dict() for entry in self.entries]
        return {**asdict(self), "n_bytes": self.n_bytes, "entries": entries}


@dataclass(frozen=True)
class Cleared:
    """What was removed.

    Attributes:
        removed: entries that are gone.
        in_use: entries that were asked for and stay, as a process uses them.
    """

    removed: tuple[CacheEntry, ...]
    in_use: tuple[CacheEntry, ...]

    @property
    def freed_bytes(self) -> int:
        """Bytes that were freed."""
        return sum(entry.n_bytes for entry in self.removed)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        removed, in_use = (
            [e.as_dict() for e in entries] for entries in (self.removed, self.in_use)
        )
        return {"removed": removed, "in_use": in_use, "freed_bytes": self.freed_bytes}


def list_cache(directory: str | Path | None = None) -> CacheContents:
    """List what is kept in a cache directory, by default the user's.

    Example:
        >>> import relmo
        >>> relmo.list_cache("an-empty-directory").n_bytes
        0
    """
    path = cache_directory() if directory is None else Path(directory)
    bound = bound_from_environment()
    found = [
        entry
        for entries in (_features(path, bound), _corpora(path), _models(path))
        for entry in sorted(entries, key=lambda entry: -entry.last_used)
    ]
    return CacheContents(str(path), bound, tuple(found))


def clear_cache(
    names: str | Collection[str] = (),
    *,
    kinds: str | Collection[str] = COMPUTED,
    older_than_days: float | None = None,
    directory: str | Path | None = None,
) -> Cleared:
    """Remove what is kept, unless a process uses it now.

    Args:
        names: what to remove, by name or by four or more of its first characters; everything if
            empty.
        kinds: one or some of `KINDS`.
        older_than_days: only what was not used for so long.
        directory: by default the user's cache directory.

    Raises:
        ConfigError: A name or kind is unknown, or a beginning is that of several names.
        DataError: Something cannot be removed.

    Example:
        >>> import relmo
        >>> relmo.clear_cache(kinds=["features"], older_than_days=30).freed_bytes
        0
    """
    names = [names] if isinstance(names, str) else names
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if unknown := set(kinds) - set(KINDS):
        raise ConfigError(f"Unknown kind {min(unknown)!r:.40}; choose from {', '.join(KINDS)}.")
    if older_than_days is not None and not older_than_days >= 0:
        raise ConfigError(f"older_than_days is {older_than_days}; expected 0 or more.")
    contents = list_cache(directory)
    entries = contents.entries
    chosen = [_look_up(name, entries, kinds) for name in names] if names else entries
    removed: list[CacheEntry] = []
    in_use: list[CacheEntry] = []
    latest = time.time() - (older_than_days or 0) * _DAY
    for entry in dict.fromkeys(chosen):
        if entry.kind in kinds and (older_than_days is None or entry.last_used <= latest):
            gone = not entry.in_use and _remove(Path(contents.directory), entry)
            (removed if gone else in_use).append(entry)
    return Cleared(tuple(removed), tuple(in_use))


def _look_up(name: str, entries: Iterable[CacheEntry], kinds: Collection[str]) -> CacheEntry:
    found = [entry for entry in entries if entry.name == name]
    if not found and len(name) >= _MIN_PREFIX:
        found = [entry for entry in entries if entry.name.startswith(name)]
    if not found and 0 < len(name) < _MIN_PREFIX:
        raise ConfigError(
            f"Nothing in the cache is named {name!r}. Of a longer name, write {_MIN_PREFIX} or "
            "more of its first characters."
        )
    if not found:
        raise ConfigError(f"Nothing in the cache is named {name!r:.80}. List what is there first.")
    if len(found) > 1:
        raise ConfigError(f"{name!r:.80} begins {len(found)} names in the cache. Write more of it.")
    if found[0].kind not in kinds:
        raise ConfigError(
            f"{name!r:.80} is one of the {found[0].kind}, but only {' and '.join(kinds)} were to "
            "be cleared. Say that kind too."
        )
    return found[0]


def _features(path: Path, bound: int) -> Iterator[CacheEntry]:
    for dataset in DatasetDirectory(path / "features", bound).datasets():
        yield CacheEntry(
            "features",
            dataset.name,
            _describe(dataset),
            dataset.n_bytes,
            dataset.last_used,
            dataset.is_complete,
            dataset.in_use,
        )


def _describe(dataset: Dataset) -> str:
    if not dataset.identity:
        return "damaged, or not begun"
    n_sentences, n_tokens, n_layers, dim, dtype = (
        dataset.settings.get(name, "?")
        for name in ("n_sentences", "n_tokens", "n_layers", "dim", "dtype")
    )
    text = f"{dataset.features}: {n_sentences} sentences, {n_tokens} tokens"
    return f"{text}, {n_layers} × {dim}, {dtype}"


def _corpora(path: Path) -> Iterator[CacheEntry]:
    folder = path / "corpora"
    shards: dict[str, list[Path]] = defaultdict(list)
    for file in folder.iterdir() if folder.is_dir() else ():
        if match := _SHARD.fullmatch(file.name):
            shards[match[1]].append(file)
    mapped = _mapped_files(folder) if shards else set()
    for key, files in shards.items():
        n_bytes, last_used = _measure(files)
        text = (
            "prepared text, 1 shard" if len(files) == 1 else f"prepared text, {len(files)} shards"
        )
        in_use = any(str(file.resolve()) in mapped for file in files)
        yield CacheEntry("corpora", key, text, n_bytes, last_used, in_use=in_use)


def _models(path: Path) -> Iterator[CacheEntry]:
    for name, model in PUBLISHED.items():
        files = [file for file in (path / name).rglob("*") if file.is_file()]
        if files:
            n_bytes, last_used = _measure(files)
            yield CacheEntry(
                "models", name, f"published model, {model.trained_on}", n_bytes, last_used
            )


def _measure(files: list[Path]) -> tuple[int, float]:
    """Bytes, and when one of the files was last read or written, as far as the system notes it."""
    found = [file.stat() for file in files]
    return sum(s.st_size for s in found), max(max(s.st_atime, s.st_mtime) for s in found)


def _mapped_files(folder: Path) -> set[str]:
    """Files of a folder that processes have mapped into memory, where the system tells."""
    prefix, found = str(folder.resolve()), set()
    for maps in Path("/proc").glob("[0-9]*/maps") if sys.platform == "linux" else ():
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # the process has ended, or belongs to somebody else
            continue
        found |= {line[line.index(prefix) :] for line in lines if prefix in line}
    return found


def _remove(path: Path, entry: CacheEntry) -> bool:
    """Remove an entry; False if it came into use meanwhile."""
    try:
        if entry.kind == "features":
            return DatasetDirectory(path / "features", 1).remove(entry.name)
        if entry.kind == "models":
            shutil.rmtree(path / entry.name)
            return True
        for file in (path / "corpora").glob(f"{entry.name}-*.safetensors"):
            file.unlink()
    except OSError as error:
        if sys.platform == "win32" and isinstance(error, PermissionError):
            return False  # files in use cannot be removed there
        raise DataError(
            f"Cannot remove {error.filename}: {error.strerror}. Check who owns it."
        ) from error
    return True
