"""A word marked in its sentence: "The [cat] sat"."""

from __future__ import annotations

from dataclasses import dataclass

import regex

from relmo.errors import DataError
from relmo.text.tokenize import Tokenizer

_MARK = regex.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class MarkedSentence:
    """Tokens, and the place of the one that is meant."""

    tokens: tuple[str, ...]
    place: int

    @property
    def word(self) -> str:
        """The marked token."""
        return self.tokens[self.place]


def parse_marked(text: str, tokenize: Tokenizer) -> MarkedSentence:
    """Take the marks away, tokenise, and find the token between them.

    Raises:
        DataError: There is not exactly one mark, or it is not around exactly one token.
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
            "token, all of it. Other tokenizers split otherwise: --tokenizer."
        )
    return MarkedSentence(tuple(token.text for token in tokens), inside[0])
