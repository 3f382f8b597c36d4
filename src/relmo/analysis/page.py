"""Senses as a web page of one file: points to hover over or walk through, a table below.

The text of a corpus is anybody's: all of it is escaped, and the page's policy lets no script run
but its own. Nothing is loaded from elsewhere; without JavaScript a point still has its title.
"""

from __future__ import annotations

import base64
import hashlib
import math
from html import escape

import numpy as np

from relmo.analysis.occurrences import Occurrence
from relmo.analysis.senses import Sense, Senses
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

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --soft: #666; --line: #ddd }
@media (prefers-color-scheme: dark) {
  :root { --ink: #eee; --paper: #161616; --soft: #aaa; --line: #444 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin: 0; font-size: 2.2rem }
p { margin: .3rem 0; color: var(--soft) }
svg { width: 100%; height: auto; display: block }
#points path { opacity: .65 }
#points path:hover, #points path:focus { opacity: 1; stroke: var(--ink); stroke-width: 2;
  outline: none }
#shown { min-height: 4.5em; color: var(--ink); border-top: 1px solid var(--line); padding: .5rem 0 }
mark { background: none; color: inherit; font-weight: bold; text-decoration: underline }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .5rem; border-top: 1px solid var(--line) }
td svg { width: 1.2rem } ul { margin: 0; padding-left: 1.1rem } .words { font-weight: bold }
"""

# Text is only ever put in as text; the place of the word in it comes along.
SCRIPT = """
const points = [...document.querySelectorAll("#points path")];
const shown = document.getElementById("shown");
function show(point) {
  const text = point.firstElementChild.textContent;
  const [start, end] = point.dataset.word.split(" ").map(Number);
  const mark = document.createElement("mark");
  mark.textContent = text.slice(start + 1, end - 1);
  shown.replaceChildren(text.slice(0, start), mark, text.slice(end));
}
points.forEach((point, i) => {
  point.setAttribute("tabindex", i ? -1 : 0);
  point.addEventListener("mouseenter", () => show(point));
  point.addEventListener("focus", () => show(point));
  point.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = points[i + (step || 0)];
    if (!step || !next) return;
    event.preventDefault();
    point.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
});
"""


def render_page(senses: Senses) -> str:
    """The whole page, HTML."""
    title = escape(", ".join(senses.words))
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    points, rows = [], []
    places = _places(senses)
    for number, sense in enumerate(senses.senses):
        colour, mark = look(number)
        drawn = f'fill="{COLOURS[colour]}" d="{MARKS[mark]}"'
        rows.append(_row(senses, sense, drawn))
        for member in sense.members:
            points.append(_point(senses.occurrences[member], drawn, *places[member]))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Senses of {title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>{senses.summary}</p>
<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="A point for each occurrence">
<g id="points">
{"".join(points)}</g>
</svg>
<p id="shown" aria-live="polite">Point at an occurrence to read its sentence, or walk through them
with Tab and the arrow keys: group by group, the most typical first.</p>
<table>
<thead><tr><th></th><th>occurrences</th><th>words nearby</th><th>typical examples</th></tr></thead>
<tbody>
{"".join(rows)}</tbody>
</table>
<script>{SCRIPT}</script>
</body>
</html>
"""


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


def _point(occurrence: Occurrence, drawn: str, x: float, y: float) -> str:
    before, word, after = occurrence.snippet(SENTENCE_CHARACTERS)
    start, length = _units(before), _units(word) + 2
    title = escape(f"{before}[{word}]{after}")
    place = f'transform="translate({x:.1f} {y:.1f})" data-word="{start} {start + length}"'
    return f"<path {drawn} {place}><title>{title}</title></path>\n"


def _units(text: str) -> int:
    """Length as JavaScript counts it."""
    return len(text.encode("utf-16-le")) // 2


def _row(senses: Senses, sense: Sense, drawn: str) -> str:
    examples = []
    for number in senses.examples(sense, N_EXAMPLES):
        parts = senses.occurrences[number].snippet(TABLE_CHARACTERS)
        before, word, after = map(escape, parts)
        examples.append(f"<li>{before}<mark>{word}</mark>{after}</li>")
    n, share = len(sense.members), len(sense.members) / len(senses.occurrences)
    mark = f'<svg viewBox="-8 -8 16 16" aria-hidden="true"><path {drawn}/></svg>'
    return (
        f"<tr><td>{mark}</td><td>{n:,} ({share:.0%})</td>"
        f'<td class="words">{escape(", ".join(sense.words))}</td>'
        f"<td><ul>{''.join(examples)}</ul></td></tr>\n"
    )
