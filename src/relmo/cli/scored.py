"""The output of `relmo score`: a table, JSON, or text with words marked."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from relmo.inference.scoring import ScoredSentence


def as_text(line: str, sentence: ScoredSentence, n_least: int) -> str:
    """The line with its least expected tokens marked: in colour on a terminal, else in brackets."""
    from relmo.inference.scoring import least_expected

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    marked = set(least_expected(sentence, n_least))
    parts, end = [], 0
    for place, token in enumerate(sentence.tokens):
        start = line.index(token, end)  # tokens come in order, and as they are written
        parts.append(line[end:start])
        end = start + len(token)
        if place in marked:
            token = typer.style(token, fg="red", bold=True) if colour else f"[{token}]"
        parts.append(token)
    return "".join([*parts, line[end:]])


def as_json(number: int, sentence: ScoredSentence, n_least: int | None) -> str:
    """One JSON object; with `n_least`, it holds the places of the least expected tokens."""
    from relmo.inference.scoring import least_expected, summarize

    perplexity = asdict(summarize([sentence])) if sentence.tokens else {}
    ways = ("forward", "backward")
    facts = {
        "line": number,
        "tokens": sentence.tokens,
        "forward": sentence.forward.tolist(),
        "backward": sentence.backward.tolist(),
        "unknown": sentence.unknown.tolist(),
        "log_probability": dict(zip(ways, sentence.log_probability, strict=True)),
        "perplexity": {way: perplexity.get(way) for way in (*ways, "average")},
    }
    if sentence.fit is not None and n_least:
        facts["fit"] = sentence.fit.tolist()
        facts["least"] = least_expected(sentence, n_least)
    return json.dumps(facts, ensure_ascii=False)


def as_table(number: int, sentence: ScoredSentence) -> str:
    """One row per token, then the sentence's boundaries, sum and perplexity."""
    from relmo.inference.scoring import summarize

    rows = [f"line {number}\tforward\tbackward"]
    columns = (sentence.tokens, sentence.forward, sentence.backward, sentence.unknown)
    for token, forward, backward, unknown in zip(*columns, strict=False):
        rows.append(f"{token}\t{forward:.4f}\t{backward:.4f}" + "\tunknown" * bool(unknown))
    if sentence.tokens:
        found, (forward, backward) = summarize([sentence]), sentence.log_probability
        rows += [
            f"</S>\t{sentence.forward[-1]:.4f}",
            f"<S>\t\t{sentence.backward[-1]:.4f}",
            f"sum\t{forward:.4f}\t{backward:.4f}",
            f"perplexity\t{found.forward:.2f}\t{found.backward:.2f}",
        ]
    return "\n".join([*rows, ""])
