"""Tokens to the numbers that a token encoder reads.

Two schemes exist. `ByteCharacters` is the published one: a token is its UTF-8 bytes. A model with
`LexiconCharacters` (lexicon.py) knows Unicode characters, perhaps words too, by place in a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from relmo.arrays import IntArray

# Byte b has id b + 1, because 0 means "no token here"; the marks follow the 256 bytes.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261


class TokenIds(NamedTuple):
    """What the token encoder reads, one row per token."""

    characters: IntArray | None  # (U, C)
    words: IntArray | None  # (U,)

    def select(self, rows: IntArray) -> TokenIds:
        """Return the ids of some of the tokens."""
        return TokenIds(*(None if ids is None else ids[rows] for ids in self))

    def n_used(self) -> IntArray:
        """Count the characters of each token (U,), up to its last one that is not padding."""
        if self.characters is None:
            assert self.words is not None
            return np.zeros_like(self.words)
        # A token that fills its row is never cut.
        differs = self.characters != self.characters[:, -1:]
        places = np.arange(1, differs.shape[1] + 1)
        used: IntArray = (differs * places).max(axis=1, initial=0)
        return used


class CharacterScheme(Protocol):
    """Turns tokens into ids; `begin` and `end` are the tokens that bound a sentence."""

    begin: str
    end: str

    @property
    def n_characters(self) -> int:
        """Number of distinct character ids."""
        ...

    def encode(self, tokens: Sequence[str]) -> TokenIds:
        """Return one row of ids per token."""
        ...


class ByteCharacters:
    """The published scheme: BOW, the token's bytes cut to C - 2, EOW, then padding.

    The cut may split a UTF-8 character: so the published models were trained. A token that is
    literally `<S>` or `</S>` is the boundary itself.
    """

    begin = "<S>"
    end = "</S>"
    _boundaries = MappingProxyType({begin: BEGIN_SENTENCE, end: END_SENTENCE})

    n_characters = PADDING + 1

    def __init__(self, max_characters: int = 50) -> None:
        self.max_characters = max_characters

    def encode(self, tokens: Sequence[str]) -> TokenIds:
        """Return ids of shape (U, C); words are not looked at."""
        # "ignore" drops lone surrogates, which UTF-8 cannot hold, as the older programs do.
        most = self.max_characters - 2
        words = [
            b"?" if token in self._boundaries else token.encode("utf-8", "ignore")[:most]
            for token in tokens
        ]  # a boundary is a word of one character
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        rows = np.repeat(np.arange(len(words)), lengths)
        columns = np.arange(len(rows)) - starts[rows] + 1
        ids = np.full((len(tokens), self.max_characters), PADDING, dtype=np.int64)
        ids[rows, columns] = np.frombuffer(b"".join(words), dtype=np.uint8)
        ids[rows, columns] += 1
        ids[:, 0] = BEGIN_WORD
        ids[np.arange(len(words)), lengths + 1] = END_WORD
        for row, token in enumerate(tokens):
            if token in self._boundaries:
                ids[row, 1] = self._boundaries[token]
        return TokenIds(ids, None)
