"""How pre-training reports: perplexity, words and tokens; learning curves on a logarithmic axis.

A row of metrics.jsonl has step, epoch, tokens, seconds, loss, perplexity, words_per_s,
learning_rate, gradient_norm and waiting (the share of time spent waiting for data); where there was
a validation, also valid_loss and the perplexities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from relmo.train.curve import figure, plot_scores, read_rows, smooth
from relmo.train.learner import Metric
from relmo.train.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

X_AXES = {"tokens": "words seen", "minutes": "minutes of training"}


def perplexity(loss: float) -> float:
    """The exponential of a loss, limited to what a float can hold."""
    return math.exp(min(loss, 700.0))


def _columns(row: Row) -> dict[str, Any]:
    return {
        "step": row.step,
        "epoch": row.epoch,
        "tokens": row.units,
        "seconds": row.seconds,
        "loss": row.loss,
        "perplexity": perplexity(row.loss),
        "words_per_s": row.units_per_s,
        "learning_rate": row.learning_rate,
        "gradient_norm": row.gradient_norm,
        "waiting": row.waiting,
        **row.extra,
    }


def _note(loss: float, metric: Metric, best: float | None) -> str:
    return f"loss {loss:.3f}  perplexity {perplexity(loss):,.1f}"


REPORT = Report(columns=_columns, note=_note)


def draw_curve(metrics: Path, directory: Path, *, training_label: str = "training") -> None:
    """Write curve.svg and curve.png: perplexity in training and validation against words seen."""
    rows = read_rows(metrics)
    with _perplexity_figure(("curve.svg", "curve.png"), directory) as axes:
        x, loss = [row["tokens"] for row in rows], [row["loss"] for row in rows]
        axes.plot(x, [*map(perplexity, loss)], color="#bbbbbb", linewidth=1, zorder=1)
        axes.plot(x, [*map(perplexity, smooth(loss))], color="#666666", label=training_label)
        for number, name in enumerate(("forward", "backward")):
            key = f"{name}_perplexity"
            plot_scores(axes, rows, key, "tokens", number, f"validation, {name}")
        axes.set_xlabel(X_AXES["tokens"])


def compare_curves(
    runs: Mapping[str, Path], path: Path, x: Literal["minutes", "tokens"] = "minutes"
) -> None:
    """Write a picture (.svg or .png) of the validation perplexity of several runs' metrics."""
    with _perplexity_figure((path.name,), path.parent) as axes:
        for number, (label, metrics) in enumerate(runs.items()):
            plot_scores(axes, read_rows(metrics), "average_perplexity", x, number, label)
        axes.set_xlabel(X_AXES[x])


@contextmanager
def _perplexity_figure(names: tuple[str, ...], directory: Path) -> Iterator[Axes]:
    with figure(names, directory) as (axes,):
        from matplotlib import ticker

        axes.set_yscale("log")
        axes.set_ylabel("perplexity")
        yield axes
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.legend()
