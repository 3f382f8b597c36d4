"""Training state: counts, limits and what is reported of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from relmo.config import TrainConfig
from relmo.train.learner import Metric, Step
from relmo.train.report import Row

RECENT_STEPS = 100  # whose mean loss must not rise far above its lowest value
OLD_NAMES = {"tokens": "units", "row_tokens": "row_units"}  # in checkpoints of version 0.1


@dataclass
class TrainState:
    """What a checkpoint holds beside the learner's state; the same on every rank, but for times."""

    step: int = 0
    units: int = 0
    seconds: float = 0.0  # of all starts, each up to the checkpoint that was resumed
    position: dict[str, int] = field(default_factory=dict)
    best: dict[str, float] | None = None
    n_worse: int = 0  # validations since the best
    losses: list[float] = field(default_factory=list)  # of the last RECENT_STEPS steps
    lowest: float | None = None  # mean of so many, after the warm-up
    row_step: int = 0  # step, units and seconds of the last row, and seconds waited since
    row_units: int = 0
    row_seconds: float = 0.0
    waited: float = 0.0
    reduction: float = 1.0  # factor of the learning rate, after plateaus
    n_flat: int = 0  # validations since the best or the last reduction

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """Restore what `as_dict` gave, in this version or an earlier one.

        Raises:
            TypeError: for values that are no training state.
        """
        return cls(**{OLD_NAMES.get(name, name): value for name, value in values.items()})

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, as JSON can hold them."""
        return asdict(self)

    def limit_reached(self, config: TrainConfig) -> str | None:
        """Why training ends, if it does."""
        reached = {
            "epochs": config.epochs and self.position.get("epoch", 0) >= config.epochs,
            "max_tokens": config.max_tokens and self.units >= config.max_tokens,
            "max_minutes": config.max_minutes and self.seconds >= 60 * config.max_minutes,
            "patience": config.patience and self.n_worse >= config.patience,
        }
        return next((name for name, is_reached in reached.items() if is_reached), None)

    def share_done(self, config: TrainConfig, n_epoch_units: int | None) -> float:
        """From 0 to 1, by the limit that is nearest; without a number of units, by whole epochs."""
        epochs = 0.0
        if config.epochs:
            done = self.units if n_epoch_units else self.position.get("epoch", 0)
            epochs = done / (config.epochs * (n_epoch_units or 1))
        shares = (
            epochs,
            self.units / config.max_tokens if config.max_tokens else 0.0,
            self.seconds / (60 * config.max_minutes) if config.max_minutes else 0.0,
        )
        return min(1.0, max(shares))

    def add_step(self, step: Step, position: dict[str, int]) -> None:
        """Count a step."""
        self.step += 1
        self.units += step.n_units
        self.position = position
        self.losses = [*self.losses[1 - RECENT_STEPS :], step.loss]

    def validation_is_due(self, config: TrainConfig, epoch_before: int) -> bool:
        """Whether to validate after this step, by finished epochs if configured, else by steps."""
        if config.validate_epochs is None:
            return self.step % config.validate_every == 0
        n = config.validate_epochs
        return self.position["epoch"] // n > epoch_before // n

    def rise(self, warmup: int) -> str | None:
        """From where to where the mean loss has risen, if training diverges."""
        if self.step < warmup + RECENT_STEPS:
            return None
        mean = self.recent_loss(RECENT_STEPS)
        lowest = self.lowest = mean if self.lowest is None else min(mean, self.lowest)
        # Twice the loss; but next to nothing may become twice next to nothing.
        diverged = mean > lowest + max(1.0, abs(lowest))
        return f"from {lowest:.3f} to {mean:.3f}" if diverged else None

    def recent_loss(self, n_steps: int) -> float:
        """Mean loss of the last steps."""
        losses = self.losses[-n_steps:]
        return math.fsum(losses) / len(losses)

    def close_row(self, unit: str, rate: float, last: Step) -> Row:
        """Sum up the steps since the last row; `last` is the latest of them."""
        seconds = max(self.seconds - self.row_seconds, 1e-9)
        row = Row(
            step=self.step,
            epoch=self.position["epoch"],
            unit=unit,
            units=self.units,
            seconds=round(self.seconds, 3),
            loss=self.recent_loss(self.step - self.row_step),
            units_per_s=round((self.units - self.row_units) / seconds, 1),
            learning_rate=rate,
            gradient_norm=last.gradient_norm,
            waiting=round(self.waited / seconds, 4),
            extra=last.extra,
        )
        self.row_step, self.row_units = self.step, self.units
        self.row_seconds, self.waited = self.seconds, 0.0
        return row

    def add_scores(
        self, metric: Metric, score: float, scores: Mapping[str, float], config: TrainConfig
    ) -> bool:
        """Count a validation, and say whether it is the best so far.

        On a plateau, `plateau_patience` validations without a better one, `decay = "plateau"`
        reduces the learning rate.
        """
        if self.best is None or metric.is_better(score, self.best[metric.name]):
            self.best = {**scores, metric.name: score, "step": self.step}
            self.n_worse = self.n_flat = 0
            return True
        self.n_worse += 1
        if config.decay == "plateau":
            self.n_flat += 1
            if self.n_flat >= config.plateau_patience:
                self.reduction *= config.plateau_factor
                self.n_flat = 0
        return False
