"""Occurrences of a word in a text: found in a stream of sentences, shown in a few characters."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import regex
from rich.cells import cell_len

from relmo.errors import ConfigError
from relmo.progress import progress
from relmo.text.tokenize import Token, Tokenizer

_BLANK = regex.compile(r"[\s\p{Cc}\p{Cs}]+")  # and what must not reach a terminal or an XML file


@dataclass(frozen=True)
class Occurrence:
    """A word in its sentence: the text, its tokens, and the word's place among them."""

    sentence: str
    tokens: tuple[Token, ...]
    place: int

    @property
    def word(self) -> Token:
        """The token itself."""
        return self.tokens[self.place]

    @property
    def begins(self) -> bool:
        """Whether no word is before it in the sentence."""
        return not any(map(str.isalnum, self.sentence[: self.word.start]))

    def nearby(self, n: int) -> list[str]:
        """The n tokens on either side, in lower case."""
        before, after = self.tokens[: self.place][-n:], self.tokens[self.place + 1 :][:n]
        return [token.text.casefold() for token in (*before, *after)]

    def snippet(self, width: int) -> tuple[str, str, str]:
        """The text before the word, the word, and the text after it, cut to a width on either side.

        Widths are those of a terminal, where a Chinese character counts for two.
        """
        before, after = self.sentence[: self.word.start], self.sentence[self.word.end :]
        before, word, after = (_BLANK.sub(" ", part) for part in (before, self.word.text, after))
        return _cut(before.lstrip()[::-1], width)[::-1], word, _cut(after.rstrip(), width)


def _cut(text: str, width: int) -> str:
    """The beginning of a text, cut between words where there are any."""
    start = text[:width]
    while cell_len(start) > width:
        start = start[:-1]
    if start == text:
        return text
    words, space, _ = start.rpartition(" ")
    return f"{words if space else start}…"


def find_occurrences(
    sentences: Iterable[str],
    words: Sequence[str],
    tokenize: Tokenizer,
    *,
    limit: int = 1000,
    seed: int = 0,
) -> tuple[list[Occurrence], int]:
    """At most `limit` occurrences, chosen at random from all, and how many there are.

    Only sentences that hold one of the words, in upper or lower case, are tokenised. A sentence
    that comes twice is taken once.

    Raises:
        ConfigError: A word is not one token.
    """
    for word in words:
        pieces = [token.text for token in tokenize(word)]
        if pieces != [word]:
            raise ConfigError(
                f"The tokenizer makes {pieces} of {word!r}; expected one token. Give one word, or "
                "forms of it one by one, or choose another tokenizer.",
                settings=["tokenizer"],
            )
    wanted = {word.casefold() for word in words}
    rng = random.Random(seed)
    kept: list[tuple[int, Occurrence]] = []
    n_found = 0
    for occurrence in _all_occurrences(sentences, wanted, tokenize):
        n_found += 1
        if len(kept) < limit:
            kept.append((n_found, occurrence))
        elif (slot := rng.randrange(n_found)) < limit:  # so that each is as likely to be kept
            kept[slot] = n_found, occurrence
    return [occurrence for _, occurrence in sorted(kept, key=itemgetter(0))], n_found


def _all_occurrences(
    sentences: Iterable[str], wanted: set[str], tokenize: Tokenizer
) -> Iterator[Occurrence]:
    seen: set[int] = set()  # of hashes: a frequent word is in millions of sentences
    with progress("Reading", unit="sentences") as advance:
        for sentence in sentences:
            advance(1)
            folded = sentence.casefold()
            if not any(word in folded for word in wanted):
                continue
            tokens = tuple(tokenize(sentence))
            places = [i for i, token in enumerate(tokens) if token.text.casefold() in wanted]
            key = hash(tuple(token.text for token in tokens))
            if places and key not in seen:
                seen.add(key)
                yield from (Occurrence(sentence, tokens, place) for place in places)
