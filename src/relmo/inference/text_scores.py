"""Perplexity and scores of text files: the functions behind `relmo perplexity` and `score`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import tee
from typing import Any

from relmo.errors import ConfigError
from relmo.inference.model_source import ModelLike, open_model
from relmo.inference.scoring import Perplexity, ScoredSentence, least_expected, summarize
from relmo.progress import progress
from relmo.text.reading import LINES, TextOptions, TextReader, TextSource


@dataclass(frozen=True)
class ScoredLine:
    """A line of a text, or a sentence of prose, with its scores.

    Attributes:
        line: its number in the text, from 1.
        text: the line as it was read.
        sentence: the scores of its tokens.
        least: places of the least expected tokens, the least expected first; None unless asked for.
    """

    line: int
    text: str
    sentence: ScoredSentence
    least: tuple[int, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        sentence, directions = self.sentence, ("forward", "backward")
        found = summarize([sentence]).as_dict() if sentence.tokens else {}
        values: dict[str, Any] = {
            "line": self.line,
            "tokens": list(sentence.tokens),
            "forward": sentence.forward.tolist(),
            "backward": sentence.backward.tolist(),
            "unknown": sentence.unknown.tolist(),
            "log_probability": dict(zip(directions, sentence.log_probability, strict=True)),
            "perplexity": {name: found.get(name) for name in (*directions, "average")},
        }
        if self.least is not None and sentence.fit is not None:
            values |= {"fit": sentence.fit.tolist(), "least": list(self.least)}
        return values


def score_file(
    text: TextSource,
    model: ModelLike = "en",
    *,
    least: int | None = None,
    text_options: TextOptions = LINES,
) -> Iterator[ScoredLine]:
    r"""Score a text: the log-probability of each token, in both directions, line by line.

    Args:
        text: a file, a directory or "-" for standard input, or a list of them.
        model: a name, a path or a loaded model, with a softmax.
        least: also find this many tokens per line that fit least.
        text_options: how to read the text; by default one sentence per line.

    Returns:
        The lines with their scores, as a stream.

    Raises:
        FormatError: The model has no softmax.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("text.txt").write_text("She looked out of the potato .\n")
        >>> (line,) = relmo.score_file("text.txt", least=1)
        >>> [line.sentence.tokens[place] for place in line.least]
        ['potato']
    """
    if least is not None and least < 1:
        raise ConfigError(f"least is {least}; expected 1 or more.", settings=["least"])
    reader = TextReader(text, text_options, blank_lines=True)
    return _score(reader, model, least)


def _score(reader: TextReader, model: ModelLike, least: int | None) -> Iterator[ScoredLine]:
    read, again = tee(reader.with_shares())
    scored = open_model(model).score((line for line, _ in read), fit=least is not None)
    with progress("Scoring", unit="words") as advance:
        pairs = zip(again, scored, strict=True)
        for number, ((line, share), sentence) in enumerate(pairs, start=1):
            advance(len(sentence.tokens), share)
            places = None if least is None else tuple(least_expected(sentence, least))
            yield ScoredLine(number, line, sentence, places)


def perplexity(
    text: TextSource, model: ModelLike = "en", *, text_options: TextOptions = LINES
) -> Perplexity:
    r"""Measure the perplexity of a text, forward (left to right) and backward (right to left).

    Args:
        text: a file, a directory or "-" for standard input, or a list of them. Blank lines are
            skipped.
        model: a name, a path or a loaded model, with a softmax.
        text_options: how to read the text; by default one sentence per line.

    Raises:
        FormatError: The model has no softmax.
        DataError: The text has no token.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("text.txt").write_text("The cat sat .\nIt slept .\n")
        >>> found = relmo.perplexity("text.txt", "en")
        >>> found.tokens  # each sentence has one prediction more than tokens: its boundary
        9
        >>> found.average == (found.forward + found.backward) / 2
        True
    """
    return summarize(line.sentence for line in score_file(text, model, text_options=text_options))
