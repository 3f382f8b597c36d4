"""Characters and words that a model knows by their place in a list: the other scheme.

It suits scripts of thousands of characters and short words: two vectors tell a convolution more of
a Chinese word than the six bytes that spell it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relmo.arrays import IntArray
from relmo.errors import ConfigError
from relmo.text.characters import ByteCharacters, CharacterScheme, TokenIds

# What a lexicon holds beside characters and words.
CHARACTER_MARKS = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")
WORD_MARKS = ("<oov>",)


@dataclass(frozen=True)
class Lexicon:
    """Characters and words that a model knows; an entry's id is its place. Either may be empty."""

    characters: tuple[str, ...]
    words: tuple[str, ...]


def build_lexicon(counts: Mapping[str, int], n_characters: int, n_words: int) -> Lexicon:
    """A corpus's most frequent characters and words: at most so many, marks included.

    Args:
        counts: how often each word occurs.
        n_characters: 0 for a model that reads none.
        n_words: likewise.
    """
    characters: Counter[str] = Counter()
    for word, n in counts.items():
        for character in word:
            characters[character] += n
    return Lexicon(
        _most_frequent(characters, n_characters, CHARACTER_MARKS),
        _most_frequent(counts, n_words, WORD_MARKS),
    )


def _most_frequent(counts: Mapping[str, int], n: int, marks: tuple[str, ...]) -> tuple[str, ...]:
    if not n:
        return ()
    if n <= len(marks):
        raise ConfigError(f"A lexicon of {n} has room for its marks alone: {' '.join(marks)}.")
    order = sorted(counts.keys() - set(marks), key=lambda entry: (-counts[entry], entry))
    return (*marks, *order[: n - len(marks)])


class LexiconCharacters:
    """Unicode characters (`<bow> c… <eow> <pad>…`) and words, each by its place in a lexicon.

    A token is cut to C - 2 characters before it is looked up, as a word too.
    """

    begin = "<bos>"
    end = "<eos>"
    unknown = "<oov>"

    def __init__(self, lexicon: Lexicon, max_characters: int = 50) -> None:
        self.lexicon = lexicon
        self.max_characters = max_characters
        self.n_characters = len(lexicon.characters)
        self._characters = {c: i for i, c in enumerate(lexicon.characters)}
        self._words = {w: i for i, w in enumerate(lexicon.words)}

    def encode(self, tokens: Sequence[str]) -> TokenIds:
        """Ids of characters (N, C) and of words (N,), each None where the lexicon has none."""
        boundaries = (self.begin, self.end)
        tokens = [t if t in boundaries else t[: self.max_characters - 2] for t in tokens]
        words = None
        if self._words:
            unknown = self._words[self.unknown]
            words = np.array([self._words.get(t, unknown) for t in tokens], dtype=np.int64)
        return TokenIds(self._encode_characters(tokens) if self._characters else None, words)

    def _encode_characters(self, tokens: Sequence[str]) -> IntArray:
        known, unknown = self._characters, self._characters[self.unknown]
        ids = np.full((len(tokens), self.max_characters), known["<pad>"], dtype=np.int64)
        for row, token in zip(ids, tokens, strict=True):
            letters = [token] if token in (self.begin, self.end) else token
            row[0] = known["<bow>"]
            row[1 : len(letters) + 1] = [known.get(c, unknown) for c in letters]
            row[len(letters) + 1] = known["<eow>"]
        return ids


def build_scheme(lexicon: Lexicon | None, max_characters: int) -> CharacterScheme:
    """The lexicon's scheme, or that of bytes where there is none."""
    if lexicon is None:
        return ByteCharacters(max_characters)
    return LexiconCharacters(lexicon, max_characters)
