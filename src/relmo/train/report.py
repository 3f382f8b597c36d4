"""What the loop reports while it trains: rows of metrics.jsonl, and a note beside the progress bar.

By default a row has step, epoch, unit, units, seconds, loss, units_per_s, learning_rate,
gradient_norm, waiting (the share of time spent waiting for data) and the extra columns of the
learner's last step. Where there was a validation it also has the scores; a score whose name is
taken, such as loss, gets the prefix `valid_`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relmo.train.learner import Metric


@dataclass(frozen=True)
class Row:
    """The steps since the last row, in numbers; `units` and `seconds` count from the start."""

    step: int
    epoch: int
    unit: str
    units: int
    seconds: float
    loss: float
    units_per_s: float
    learning_rate: float
    gradient_norm: float
    waiting: float
    extra: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Columns by name."""
        columns = {name: value for name, value in vars(self).items() if name != "extra"}
        return {**columns, **self.extra}


def describe_progress(loss: float, metric: Metric, best: float | None) -> str:
    """The loss of the last steps and the best score so far, for people."""
    score = "" if best is None else f"  best {metric.name.replace('_', ' ')} {best:.4g}"
    return f"loss {loss:.3f}{score}"


@dataclass(frozen=True)
class Report:
    """How a kind of training presents itself.

    Attributes:
        columns: a row of metrics.jsonl by column.
        note: a few words from the loss, the deciding metric and its best score so far.
    """

    columns: Callable[[Row], dict[str, Any]] = Row.as_dict
    note: Callable[[float, Metric, float | None], str] = describe_progress


def add_scores(columns: dict[str, Any], scores: Mapping[str, float]) -> None:
    """Add the scores of a validation to a row, under names that are free."""
    columns |= {f"valid_{name}" if name in columns else name: n for name, n in scores.items()}
