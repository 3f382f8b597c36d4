"""Senses as a picture for a slide: one point per occurrence, examples in the margins."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.analysis.page import look, render_page
from relmo.analysis.senses import Senses
from relmo.errors import ConfigError, RelmoWarning
from relmo.files import check_writable, written_atomically
from relmo.train.curve import COLOURS, LOOK, MARKERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (12.8, 7.2)  # inches: a slide
MARGIN = 0.32  # of the width, on either side, for words and examples
EDGE = 0.02
MOST_EXAMPLES = 3
LINE = 0.034  # of the height


def check_picture(path: Path) -> None:
    """Raise what `write_picture` would raise for this name, before any work is done."""
    if path.suffix.lower() not in PICTURES:
        raise ConfigError(f"{path} must end in one of {', '.join(PICTURES)}.")
    check_writable(path)
    if path.suffix.lower() != ".html":
        _import_matplotlib()


def write_picture(senses: Senses, path: str | Path) -> None:
    """Draw senses; the ending of the name (.png, .svg, .html) chooses the format."""
    path = Path(path)
    check_picture(path)
    with written_atomically(path) as written:
        PICTURES[path.suffix.lower()](senses, written)


def _write_page(senses: Senses, path: Path) -> None:
    path.write_text(render_page(senses), encoding="utf-8")


def _write_png(senses: Senses, path: Path) -> None:
    with _style(senses, warn=True):
        _draw(senses).savefig(path, format="png", dpi=150)


def _write_svg(senses: Senses, path: Path) -> None:
    with _style(senses, warn=False):  # its text is drawn where it is shown, by fonts that are there
        _draw(senses).savefig(path, format="svg", metadata={"Date": None})


PICTURES = {".png": _write_png, ".svg": _write_svg, ".html": _write_page}


def _import_matplotlib() -> Any:
    try:
        import matplotlib.font_manager
        import matplotlib.ft2font
        from matplotlib.backends import backend_agg
    except ImportError:
        raise ConfigError(
            "Drawing senses needs the package matplotlib, which is not installed. Install it with: "
            "pip install 'relmo[senses]', or write .html, which needs nothing."
        ) from None
    assert backend_agg
    return matplotlib


@contextmanager
def _style(senses: Senses, *, warn: bool) -> Iterator[None]:
    """Settings to draw with, fonts for the text's script among them."""
    matplotlib = _import_matplotlib()
    shown = [n for sense in senses.senses for n in senses.examples(sense, MOST_EXAMPLES)]
    texts = [*senses.words, *(word for sense in senses.senses for word in sense.words)]
    texts += [senses.occurrences[n].sentence for n in shown]
    missing = set(map(ord, "".join(texts))) - _characters(
        matplotlib.font_manager.findfont("DejaVu Sans")
    )
    missing = {code for code in missing if chr(code).isalnum()}
    family, missing = _find_font(missing) if missing else ("", missing)
    if missing and warn:
        some = "".join(map(chr, sorted(missing)[:8]))
        warnings.warn(
            f"No font that is installed has the characters {some}: they are drawn as boxes. "
            "Install one that has (such as Noto Sans CJK for Chinese), or write .svg or .html.",
            RelmoWarning,
            stacklevel=2,
        )
    families = ["DejaVu Sans", family] if family else ["DejaVu Sans"]
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)  # that a font has no bold
    try:
        with matplotlib.rc_context({**LOOK, "font.family": families}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # said above, once
            yield
    finally:
        log.setLevel(level)


def _characters(font: str) -> set[int]:
    return set(_import_matplotlib().ft2font.FT2Font(font).get_charmap())


def _find_font(wanted: set[int]) -> tuple[str, set[int]]:
    """The family of the font that has most of these characters, and those that it has not."""
    best, missing = "", wanted
    fonts = _import_matplotlib().font_manager.fontManager.ttflist
    for font in sorted(fonts, key=lambda font: str(font.name)):
        if "Last Resort" in font.name:  # has a box for each of them
            continue
        left = wanted - _characters(font.fname)
        if len(left) < len(missing):
            best, missing = font.name, left
        if not missing:
            break
    return best, missing


def _draw(senses: Senses) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, facecolor="white")
    axes = figure.add_axes((MARGIN, 0.04, 1 - 2 * MARGIN, 0.82))
    axes.set_axis_off()
    for number, sense in enumerate(senses.senses):
        x, y = senses.points[list(sense.members)].T
        size = np.clip(12_000 / len(senses.occurrences), 12, 90)
        axes.scatter(x, y, size, **_look(number), alpha=0.55, linewidths=0)
    axes.margins(0.03)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed, as lines end at points
    title = ", ".join(senses.words)
    figure.text(EDGE, 0.93, title, fontsize=30, fontweight="bold", parse_math=False)
    figure.text(EDGE, 0.89, senses.summary, fontsize=13, color="#555555", parse_math=False)
    for side, numbers in enumerate(_sides(senses)):
        for row, number in enumerate(numbers):
            top = 0.83 - 0.80 * row / len(numbers)
            n_examples = min(MOST_EXAMPLES, int(0.80 / len(numbers) / LINE) - 3)
            _describe_sense(figure, senses, number, bool(side), top, n_examples)
    return figure


def _look(number: int) -> dict[str, Any]:
    colour, mark = look(number)
    return {"color": COLOURS[colour], "marker": MARKERS[mark]}


def _sides(senses: Senses) -> tuple[list[int], list[int]]:
    """Numbers of the senses that are described left and right, from the top, near their points."""
    centres = [senses.points[list(sense.members)].mean(axis=0) for sense in senses.senses]
    order = sorted(range(len(centres)), key=lambda number: centres[number][0])
    left, right = order[: len(order) // 2], order[len(order) // 2 :]
    down = [sorted(side, key=lambda number: -centres[number][1]) for side in (left, right)]
    return down[0], down[1]


def _describe_sense(
    figure: Figure, senses: Senses, number: int, right: bool, top: float, n_examples: int
) -> None:
    """Marker, words and count of a sense, and examples with lines to their points."""
    from matplotlib.lines import Line2D

    sense, style = senses.senses[number], _look(number)
    x = 1 - MARGIN + EDGE if right else EDGE
    figure.add_artist(Line2D([x + 0.006], [top + 0.009], markersize=11, linestyle="", **style))
    share = len(sense.members) / len(senses.occurrences)
    figure.text(x + 0.018, top, f"{len(sense.members):,} ({share:.0%})", fontsize=13)
    words = [", ".join(sense.words[:n]) for n in range(len(sense.words), 0, -1)]
    _fitted(figure, x, top - LINE, words or ["in many contexts"], fontsize=14, fontweight="bold")
    axes = figure.axes[0]
    examples = senses.examples(sense, n_examples)
    for row, example in enumerate(sorted(examples, key=lambda n: -senses.points[n][1])):
        y = top - (row + 2) * LINE
        snippets = (senses.occurrences[example].snippet(n) for n in range(32, 0, -2))
        text = _fitted(figure, x, y, [f"{a}[{b}]{c}" for a, b, c in snippets], fontsize=11)
        axes.plot(*senses.points[example], markersize=9, markeredgecolor="black", **style)
        point = axes.transData.transform(senses.points[example])
        to_x, to_y = figure.transFigure.inverted().transform(point)
        from_x = x - 0.005 if right else x + text + 0.005
        line = Line2D([from_x, to_x], [y + 0.008, to_y], color=style["color"], linewidth=0.8)
        figure.add_artist(line).set_alpha(0.7)


def _fitted(figure: Figure, x: float, y: float, texts: Sequence[str], **style: Any) -> float:
    """Write the first of some texts, shorter and shorter, that fits into the margin: its width."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    written = figure.text(x, y, "", parse_math=False, **style)
    width = 0.0
    for text in texts:
        written.set_text(text)
        width = written.get_window_extent(canvas.get_renderer()).width / figure.bbox.width
        if width <= MARGIN - 2 * EDGE:
            break
    return float(width)
