"""The tables of a shard: filled, written, and checked when they are read again.

A shard is a safetensors file. `ids` (N,) are its tokens, as indices into the shard's own table of
distinct words; `ends` (S,) are the ends of its sentences. The table of words is sorted by falling
frequency: `words` (UTF-8, concatenated), `word_ends`, `counts`.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from relmo.errors import FormatError
from relmo.files import written_atomically

FORMAT = "relmo shard 1"  # increase it whenever sentences or tokens change
_LAST = ", last"  # marks the last shard of a unit
_MAX_TOKENS, _MAX_WORDS, _MAX_CHARACTERS = 1 << 23, 1 << 20, 1 << 26  # of a shard
_BOUNDARIES = frozenset(("<S>", "</S>"))
_DTYPES = {
    "ids": "int32",
    "ends": "int64",
    "words": "uint8",
    "word_ends": "int64",
    "counts": "int64",
}


class Draft:
    """A shard that is being filled."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of words, as they come
        self._ids, self._ends = array("i"), array("q")
        self._n_characters = 0

    @property
    def is_full(self) -> bool:
        """Whether the next sentence should go to a new shard, so that memory is bounded."""
        return (
            len(self._ids) >= _MAX_TOKENS
            or len(self._numbers) >= _MAX_WORDS
            or self._n_characters >= _MAX_CHARACTERS
        )

    def add(self, tokens: list[str]) -> None:
        """Add a sentence, unless it is empty."""
        if not _BOUNDARIES.isdisjoint(tokens):
            tokens = [token for token in tokens if token not in _BOUNDARIES]
        if tokens:
            numbers = self._numbers
            self._ids.extend([numbers.setdefault(token, len(numbers)) for token in tokens])
            self._ends.append(len(self._ids))
            self._n_characters += sum(map(len, tokens))

    def write(self, cache: Path, key: str, number: int, *, last: bool) -> Path:
        """Write the shard with this number; `last` marks the last shard of its unit."""
        ids = np.asarray(self._ids, dtype=np.int32)
        counts = np.bincount(ids, minlength=len(self._numbers))
        order = np.argsort(-counts, kind="stable")
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        words = list(self._numbers)
        # "replace": some encodings let lone surrogates through
        encoded = [words[i].encode("utf-8", "replace") for i in order.tolist()]
        tables: dict[str, np.ndarray] = {
            "ids": rank[ids],
            "ends": np.asarray(self._ends, dtype=np.int64),
            "words": np.frombuffer(b"".join(encoded), dtype=np.uint8),
            "word_ends": np.cumsum([len(word) for word in encoded], dtype=np.int64),
            "counts": counts[order].astype(np.int64),
        }
        metadata = {
            "format": FORMAT + _LAST * last
        }  # one entry, as safetensors does not keep the order of several
        path = cache / f"{key}-{number}.safetensors"
        with written_atomically(path) as partial_file:
            partial_file.write_bytes(safetensors.numpy.save(tables, metadata))
        return path


def find_shards(cache: Path, key: str) -> list[Path]:
    """The shards of a unit if all of them exist and are undamaged, else an empty list."""
    paths: list[Path] = []
    is_last = False
    while not is_last:
        paths.append(cache / f"{key}-{len(paths)}.safetensors")
        try:
            is_last = check_shard(paths[-1])
        except FormatError:
            return []
    return paths


def check_shard(path: Path) -> bool:
    """Check a shard; return whether it is the last of its unit.

    Raises:
        FormatError: It is missing, damaged or of another format.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            found = (file.metadata() or {}).get("format", "unknown")
            tables = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FormatError(f"Cannot read the shard {path}: {error}. Prepare it again.") from error
    if found not in (FORMAT, FORMAT + _LAST):
        raise FormatError(
            f"{path} is of the format {found!r}, expected {FORMAT!r}. Prepare it again."
        )
    if not _fit_together(tables):
        raise FormatError(
            f"The shard {path} is damaged: its tables do not fit together. Prepare it again."
        )
    return bool(found == FORMAT + _LAST)


def _fit_together(tables: dict[str, np.ndarray]) -> bool:
    if {name: str(t.dtype) for name, t in tables.items() if t.ndim == 1} != _DTYPES:
        return False
    ids, ends, counts = tables["ids"], tables["ends"], tables["counts"]
    words, word_ends = tables["words"], tables["word_ends"]
    try:
        words.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return bool(
        len(counts) == len(word_ends)
        and all(_are_ends(e, len(t)) for e, t in ((ends, ids), (word_ends, words)))
        and np.all(words[word_ends[:-1]] & 0xC0 != 0x80)  # no word ends inside a UTF-8 character
        and b"\n" not in words.tobytes()
        and not (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(counts))
        and np.array_equal(np.bincount(ids, minlength=len(counts)), counts)
    )


def _are_ends(ends: np.ndarray, total: int) -> bool:
    """Whether `ends` splits `total` items into consecutive pieces, none of them empty."""
    lengths = np.diff(ends, prepend=0)
    return bool(np.all(lengths > 0)) and (int(ends[-1]) if len(ends) else 0) == total
