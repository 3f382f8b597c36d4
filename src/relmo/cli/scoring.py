"""Read and score a text, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from relmo.inference.scoring import ScoredSentence

Text = Annotated[
    str, typer.Argument(metavar="TEXT", help="Text, one sentence per line; - is stdin.")
]


def score_lines(
    text: str,
    model: str,
    prose: str | None,
    tokenizer: str | None,
    encoding: str,
    errors: str,
    options: Path | None,
    fit: bool = False,
) -> Iterator[tuple[str, ScoredSentence]]:
    """Yield each line, or sentence of prose, with its scores; shows a progress bar."""
    from relmo.inference.model import load
    from relmo.progress import progress
    from relmo.text.corpus import read_lines
    from relmo.text.sentences import read_sentences

    n_read = 0  # bytes

    def count(n: int) -> None:
        nonlocal n_read
        n_read += n

    how: Any = {"encoding": encoding, "errors": errors, "advance": count}
    sentences = read_sentences(text, lines=False, language=prose, **how) if prose else None
    lines, again = tee(sentences or read_lines(text, **how))
    scorer = load(model, options=options, tokenizer=tokenizer)
    size = Path(text).stat().st_size if Path(text).is_file() else 0
    with progress("Scoring", unit="words") as advance:
        for line, sentence in zip(again, scorer.score(lines, fit=fit), strict=True):
            advance(len(sentence.tokens), n_read / size if size else None)
            yield line, sentence
