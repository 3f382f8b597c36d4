"""Learning curves as pictures, from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from relmo.errors import ConfigError, DataError
from relmo.files import written_atomically
from relmo.train.log import read_metrics
from relmo.train.state import perplexity

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
X_AXES = {"tokens": "words seen", "minutes": "minutes of training"}
SMOOTHING = 5  # neighbours on either side in each point of the training curve


def draw_curve(metrics: Path, directory: Path, *, training_label: str = "training") -> None:
    """Write curve.svg and curve.png: perplexity in training and validation against words seen."""
    rows = _read_rows(metrics)
    with _figure(("curve.svg", "curve.png"), directory) as axes:
        x, loss = [row["tokens"] for row in rows], [row["loss"] for row in rows]
        axes.plot(x, [*map(perplexity, loss)], color="#bbbbbb", linewidth=1, zorder=1)
        axes.plot(x, [*map(perplexity, _smooth(loss))], color="#666666", label=training_label)
        for number, name in enumerate(("forward", "backward")):
            key = f"{name}_perplexity"
            _plot_scores(axes, rows, key, "tokens", number, f"validation, {name}")
        axes.set_xlabel(X_AXES["tokens"])


def compare_curves(
    runs: Mapping[str, Path], path: Path, x: Literal["minutes", "tokens"] = "minutes"
) -> None:
    """Write a picture (.svg or .png) of the validation perplexity of several runs' metrics."""
    with _figure((path.name,), path.parent) as axes:
        for number, (label, metrics) in enumerate(runs.items()):
            _plot_scores(axes, _read_rows(metrics), "average_perplexity", x, number, label)
        axes.set_xlabel(X_AXES[x])


@contextmanager
def _figure(names: tuple[str, ...], directory: Path) -> Iterator[Axes]:
    """Axes to draw on, written under each of the names in the end."""
    try:
        from matplotlib import rc_context, ticker
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "Drawing curves needs the package matplotlib, which is not installed. Install it with: "
            "pip install 'relmo[plots]'"
        ) from None
    with rc_context(LOOK):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        axes.set_yscale("log")
        axes.set_ylabel("perplexity")
        yield axes
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.legend()
        for name in names:
            _write(figure, directory / name)


def _write(figure: Figure, path: Path) -> None:
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png"):
        raise ConfigError(f"Cannot draw {path}: expected a name that ends in .svg or .png.")
    with written_atomically(path) as written:
        undated = {"Date": None} if kind == "svg" else None
        figure.savefig(written, format=kind, dpi=150, metadata=undated)


def _read_rows(metrics: Path) -> list[dict[str, Any]]:
    rows = read_metrics(metrics)
    if not rows:
        raise DataError(f"{metrics} has no rows yet, so there is no curve to draw. Train first.")
    return [{**row, "minutes": row["seconds"] / 60} for row in rows]


def _plot_scores(
    axes: Axes, rows: list[dict[str, Any]], key: str, x: str, number: int, label: str
) -> None:
    scored = [row for row in rows if key in row]
    axes.plot(
        [row[x] for row in scored],
        [row[key] for row in scored],
        color=COLOURS[number % len(COLOURS)],
        linestyle=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
        label=label,
    )


def _smooth(values: list[float]) -> list[float]:
    starts = (max(0, i - SMOOTHING) for i in range(len(values)))
    return [fmean(values[start : i + SMOOTHING + 1]) for i, start in enumerate(starts)]
