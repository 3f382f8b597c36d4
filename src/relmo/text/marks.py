"""Parse a sentence with one word marked by brackets: "The [cat] sat"."""

from __future__ import annotations

from dataclasses import dataclass

import regex

from relmo.errors import DataError
from relmo.text.tokenize import Tokenizer

_MARK = regex.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class MarkedSentence:
    """Tokens, and the index of the marked one."""

    tokens: tuple[str, ...]
    place: int

    @property
    def word(self) -> str:
        """The marked token."""
        return self.tokens[self.place]


def has_mark(text: str) -> bool:
    """Whether something is marked by brackets."""
    return any(mark[1].strip() for mark in _MARK.finditer(text))


def parse_marked(text: str, tokenize: Tokenizer) -> MarkedSentence:
    """Remove the brackets, tokenise, and find the token that they were around.

    Raises:
        DataError: There is not exactly one pair of brackets, or it is not around exactly one token.
    """
    marks = list(_MARK.finditer(text))
    if len(marks) != 1:
        raise DataError(
            f"Expected one word in square brackets, found {len(marks) or 'none'} in {text!r:.80}. "
            "Mark the word that you mean: The [cat] sat."
        )
    (mark,) = marks
    plain = text[: mark.start()] + mark[1] + text[mark.end() :]
    start, end = mark.start(), mark.start() + len(mark[1])
    tokens = tokenize(plain)
    inside = [i for i, token in enumerate(tokens) if token.start < end and token.end > start]
    exact = mark[1].strip()
    if len(inside) != 1 or tokens[inside[0]].text != exact:
        found = " ".join(tokens[i].text for i in inside) or "nothing"
        raise DataError(
            f"The mark is around {mark[1]!r}, which the tokenizer splits as {found!r}: mark one "
            "whole token, or choose another tokenizer.",
            settings=["tokenizer"],
        )
    return MarkedSentence(tuple(token.text for token in tokens), inside[0])
