"""The vocabulary of a model's softmax: `<S> </S> <UNK>`, then words by falling frequency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from relmo.errors import ConfigError, DataError, FormatError

SPECIAL = ("<S>", "</S>", "<UNK>")
UNKNOWN = "<UNK>"
MAX_WORDS = 100_000_000
_MAX_BYTES = 1 << 31
_MIN_SORTED = 0.5  # counts of another text give 0.7 or more, alphabetical order less than 0.4
_RELIC = "!!!MAXTERMID"  # a line of the oldest vocabulary files, ignored


@dataclass(frozen=True)
class Vocabulary:
    """The words, by index."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The index of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def number(self, word: str) -> int:
        """The index of a word, or that of `<UNK>`."""
        return self.numbers.get(word, self.numbers[UNKNOWN])

    def to_text(self) -> str:
        """One word per line, as `parse_vocabulary` reads it."""
        return "".join(f"{word}\n" for word in self.words)


def build_vocabulary(counts: Mapping[str, int], size: int, min_count: int) -> Vocabulary:
    """The special words, then the most frequent others that occur at least `min_count` times.

    Args:
        counts: how often each word occurs.
        size: maximum number of words, special ones included.
        min_count: minimum number of occurrences of a word.
    """
    frequent = ((-n, word) for word, n in counts.items() if n >= min_count and word not in SPECIAL)
    most = sorted(frequent)[
        : max(0, size - len(SPECIAL))
    ]  # words of equal counts in alphabetical order
    return Vocabulary((*SPECIAL, *(word for _, word in most)))


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary for training; blank lines and duplicate words are errors."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(f"{path} is larger than {_MAX_BYTES:,} bytes: no vocabulary is.")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Check the name.") from error
    words = _read_words(data, str(path))
    if len(words) > MAX_WORDS:
        raise FormatError(f"{path} has {len(words):,} words; at most {MAX_WORDS:,} can be trained.")
    seen: dict[str, int] = {}
    for line, word in enumerate(words, start=1):
        if not word.strip():
            raise FormatError(f"{path}: line {line} is empty; expected a word. Delete the line.")
        if (first := seen.setdefault(word, line)) != line:
            raise FormatError(
                f"{path}: line {line} repeats {word!r} of line {first}. Delete one of them."
            )
    return parse_vocabulary(data, str(path))


def check_order(vocabulary: Vocabulary, counts: Mapping[str, int], where: str) -> None:
    """Raise `ConfigError` unless words are roughly sorted by falling frequency in `counts`.

    Sampled softmax draws its negative samples by a word's rank. `counts` of another text of the
    same language and genre are good enough.
    """
    known = [(place, counts[w]) for place, w in enumerate(vocabulary.words) if counts.get(w)]
    known = [(place, n) for place, n in known if place >= len(SPECIAL)]
    if not known:
        raise ConfigError(
            f"None of the {len(vocabulary):,} words of {where} occurs in the text. Check that both "
            "are of one language, case and tokenizer, or leave it out to have one built."
        )
    places, n = np.array(known, dtype=np.float64).T  # (K,) each
    if _sortedness(places, n) >= _MIN_SORTED:
        return
    late = int(np.argmax(n - np.minimum.accumulate(n)))  # the greatest rise
    early = int(np.argmin(n[: late + 1]))
    word, other = (vocabulary.words[int(places[i])] for i in (late, early))
    raise ConfigError(
        f"{where} is not sorted by falling frequency: line {places[early] + 1:.0f} is {other!r}, "
        f"which the text has {n[early]:,.0f} times, and line {places[late] + 1:.0f} is {word!r}, "
        f"which it has {n[late]:,.0f} times. Training needs frequent words first: sort it so, or "
        "leave it out to have a vocabulary built from the text."
    )


def _sortedness(places: np.ndarray, counts: np.ndarray) -> float:
    """1 if counts never rise with places, about 0 for an order unrelated to the counts.

    It compares the mean log rank of a running word, about what sampled softmax assumes of it, with
    the same for sorted counts and with its expectation for shuffled ones.
    """
    log_places = np.log1p(places)
    found, best = log_places @ counts, log_places @ np.sort(counts)[::-1]
    shuffled = log_places.mean() * counts.sum()
    return float((shuffled - found) / (shuffled - best)) if shuffled > best * (1 + 1e-9) else 1.0


def _read_words(data: bytes, where: str) -> list[str]:
    """Read one word per line, UTF-8; only newlines end a line."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{where}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x}). "
            "A vocabulary is UTF-8, one word per line: convert it first."
        ) from None
    words = [line.removesuffix("\r") for line in lines]
    if words and not words[-1]:
        words.pop()
    return words


def parse_vocabulary(data: bytes, where: str) -> Vocabulary:
    """Read one word per line, UTF-8; only newlines end a line. `where` names it in errors."""
    words = [word for word in _read_words(data, where) if word != _RELIC]
    if tuple(words[:3]) != SPECIAL:
        raise FormatError(
            f"{where} begins with {words[:3]}; a vocabulary begins with {list(SPECIAL)} and goes "
            "on by falling frequency, one word per line."
        )
    return Vocabulary(tuple(words))
