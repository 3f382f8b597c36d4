"""Learning curves as pictures, from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from relmo.errors import ConfigError, DataError
from relmo.files import written_atomically
from relmo.train.learner import Metric
from relmo.train.log import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which nobody confuses; markers and dashes tell them apart without any.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
MARKERS = "o^sDv*"
LOOK: Any = {
    "font.size": 13,
    **{"axes.spines.top": False, "axes.spines.right": False},
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "lines.linewidth": 2.2,
    "legend.frameon": False,
    "svg.hashsalt": "relmo",  # else ids in the file are random
    "svg.fonttype": "none",
}
SMOOTHING = 5  # neighbours on either side in each point of the training curve


def draw_curve(metrics: Path, directory: Path, metric: Metric) -> None:
    """Write curve.svg and curve.png: the loss and the deciding metric against what was seen."""
    rows = read_rows(metrics)
    x, loss = [row["units"] for row in rows], [row["loss"] for row in rows]
    names = ["loss"] if metric.name == "loss" else ["loss", metric.name]
    with figure(("curve.svg", "curve.png"), directory, n_panels=len(names)) as panels:
        panels[0].plot(x, loss, color="#bbbbbb", linewidth=1, zorder=1)
        panels[0].plot(x, smooth(loss), color="#666666", label="training")
        for axes, name in zip(panels, names, strict=True):
            axes.set_ylabel(name.replace("_", " "))
            valid = f"valid_{name}"  # the name of a score that training reports too
            column = valid if any(valid in row for row in rows) else name
            if name != "loss" or column == valid:
                plot_scores(axes, rows, column, "units", 0, "validation")
            axes.legend()
        panels[-1].set_xlabel(f"{rows[-1]['unit']} seen")


@contextmanager
def figure(names: tuple[str, ...], directory: Path, *, n_panels: int = 1) -> Iterator[list[Axes]]:
    """Panels to draw on, one below the other; written under each of the names in the end."""
    try:
        from matplotlib import rc_context, ticker
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "Drawing curves needs the package matplotlib, which is not installed. Install it with: "
            "pip install 'relmo[plots]'"
        ) from None
    with rc_context(LOOK):
        drawing = Figure(figsize=(8, 4.5 if n_panels == 1 else 3 * n_panels), layout="constrained")
        panels = list(drawing.subplots(n_panels, 1, sharex=True, squeeze=False)[:, 0])
        yield panels
        panels[-1].xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        for name in names:
            _write(drawing, directory / name)


def _write(drawing: Figure, path: Path) -> None:
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png"):
        raise ConfigError(f"Cannot draw {path}: expected a name that ends in .svg or .png.")
    with written_atomically(path) as written:
        undated = {"Date": None} if kind == "svg" else None
        drawing.savefig(written, format=kind, dpi=150, metadata=undated)


def read_rows(metrics: Path) -> list[dict[str, Any]]:
    """All rows of metrics.jsonl, at least one, with `minutes` too."""
    rows = read_metrics(metrics)
    if not rows:
        raise DataError(f"{metrics} has no rows yet, so there is no curve to draw. Train first.")
    return [{**row, "minutes": row["seconds"] / 60} for row in rows]


def plot_scores(
    axes: Axes, rows: list[dict[str, Any]], key: str, x: str, number: int, label: str
) -> None:
    """Draw the column `key` of the rows that have it against `x`, in the look of that number."""
    scored = [row for row in rows if key in row]
    axes.plot(
        [row[x] for row in scored],
        [row[key] for row in scored],
        color=COLOURS[number % len(COLOURS)],
        linestyle=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
        label=label,
    )


def smooth(values: list[float]) -> list[float]:
    """The mean of each value and its neighbours."""
    starts = (max(0, i - SMOOTHING) for i in range(len(values)))
    return [fmean(values[start : i + SMOOTHING + 1]) for i, start in enumerate(starts)]
