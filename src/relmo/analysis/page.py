"""Senses as a web page in one file: points to hover over or walk through, and a table.

The text of a corpus is not trusted: the template (`templates/senses.html`) escapes all of it, and
the page's content security policy allows no script but its own. Nothing is loaded from elsewhere.
Without JavaScript a point still shows its sentence as a title.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from relmo.analysis.occurrences import Occurrence
from relmo.analysis.senses import Senses
from relmo.train.curve import COLOURS

WIDTH, HEIGHT, EDGE = 960, 540, 24
SENTENCE_CHARACTERS = 240  # shown on either side of the word
TABLE_CHARACTERS = 60
N_EXAMPLES = 5


def _polygon(n: int, turn: float, radius: float, inner: float = 1.0) -> str:
    """The path of a polygon, or of a star where every other corner is nearer."""
    corners = []
    for i in range(n):
        angle, r = 2 * math.pi * (i + turn) / n, radius * (inner if i % 2 else 1)
        corners.append(f"{r * math.sin(angle):.1f} {-r * math.cos(angle):.1f}")
    return f"M{'L'.join(corners)}Z"


MARKS = (  # in the order of MARKERS in pictures
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
    _polygon(3, 0, 6.5),
    _polygon(4, 0.5, 6.5),
    _polygon(4, 0, 6.5),
    _polygon(3, 1.5, 6.5),
    _polygon(10, 0, 7.5, 0.45),
)


@dataclass(frozen=True)
class _Point:
    """An occurrence: its place, its sentence, and where in the sentence the word stands."""

    x: str
    y: str
    title: str
    start: int
    end: int


@dataclass(frozen=True)
class _Group:
    """A sense as the template shows it."""

    colour: str
    mark: str
    size: str
    words: str
    points: list[_Point]
    examples: list[tuple[str, str, str]]


def render_page(senses: Senses) -> str:
    """The whole page, HTML."""
    environment = Environment(
        loader=PackageLoader("relmo.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    script = "\n" + files("relmo.analysis").joinpath("templates/senses.js").read_text("utf-8")
    places = _places(senses)
    return environment.get_template("senses.html").render(
        words=", ".join(senses.words),
        summary=senses.summary,
        width=WIDTH,
        height=HEIGHT,
        groups=[_group(senses, number, places) for number in range(len(senses.senses))],
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def look(number: int) -> tuple[int, int]:
    """Numbers of a group's colour and mark: after all colours, each comes with another mark."""
    return number % len(COLOURS), (number + number // len(COLOURS)) % len(MARKS)


def _places(senses: Senses) -> list[tuple[float, float]]:
    """Where the points are in the picture."""
    low, high = senses.points.min(axis=0), senses.points.max(axis=0)
    share = (senses.points - low) / np.maximum(high - low, 1e-9)  # 0 to 1
    x = EDGE + share[:, 0] * (WIDTH - 2 * EDGE)
    y = HEIGHT - EDGE - share[:, 1] * (HEIGHT - 2 * EDGE)
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]


def _group(senses: Senses, number: int, places: list[tuple[float, float]]) -> _Group:
    sense, (colour, mark) = senses.senses[number], look(number)
    examples = senses.examples(sense, N_EXAMPLES)
    share = len(sense.members) / len(senses.occurrences)
    return _Group(
        colour=COLOURS[colour],
        mark=MARKS[mark],
        size=f"{len(sense.members):,} ({share:.0%})",
        words=", ".join(sense.words),
        points=[_point(senses.occurrences[n], *places[n]) for n in sense.members],
        examples=[senses.occurrences[n].snippet(TABLE_CHARACTERS) for n in examples],
    )


def _point(occurrence: Occurrence, x: float, y: float) -> _Point:
    before, word, after = occurrence.snippet(SENTENCE_CHARACTERS)
    start = _units(before)
    end = start + _units(word) + 2  # with the brackets
    return _Point(f"{x:.1f}", f"{y:.1f}", f"{before}[{word}]{after}", start, end)


def _units(text: str) -> int:
    """Length as JavaScript counts it."""
    return len(text.encode("utf-16-le")) // 2
