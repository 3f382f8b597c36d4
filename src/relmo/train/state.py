"""Training state: counts, limits and what is reported of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from relmo.config import TrainConfig

RECENT_STEPS = 100  # whose mean loss must not rise far above what it once was


@dataclass
class TrainState:
    """What a checkpoint holds beside the learner's state; the same on every rank, but for times."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of all starts together, each up to the checkpoint that was gone on from
    position: dict[str, int] = field(default_factory=dict)
    best: dict[str, float] | None = None
    n_worse: int = 0  # validations since the best
    losses: list[float] = field(default_factory=list)  # of the last RECENT_STEPS steps
    lowest: float | None = None  # mean of so many, after the warm-up
    row_step: int = 0  # step, tokens and seconds of the last row, and seconds waited since
    row_tokens: int = 0
    row_seconds: float = 0.0
    waited: float = 0.0

    def limit_reached(self, config: TrainConfig) -> str | None:
        """Why training ends, if it does."""
        reached = {
            "epochs": config.epochs and self.position.get("epoch", 0) >= config.epochs,
            "max_tokens": config.max_tokens and self.tokens >= config.max_tokens,
            "max_minutes": config.max_minutes and self.seconds >= 60 * config.max_minutes,
            "patience": config.patience and self.n_worse >= config.patience,
        }
        return next((name for name, is_reached in reached.items() if is_reached), None)

    def share_done(self, config: TrainConfig, n_epoch_tokens: int) -> float:
        """From 0 to 1, by the limit that is nearest."""
        shares = (
            self.tokens / (config.epochs * n_epoch_tokens) if config.epochs else 0.0,
            self.tokens / config.max_tokens if config.max_tokens else 0.0,
            self.seconds / (60 * config.max_minutes) if config.max_minutes else 0.0,
        )
        return min(1.0, max(shares))

    def add_step(self, loss: float, n_tokens: int, position: dict[str, int]) -> None:
        """Count a step."""
        self.step += 1
        self.tokens += n_tokens
        self.position = position
        self.losses = [*self.losses[1 - RECENT_STEPS :], loss]

    def rise(self, warmup: int) -> str | None:
        """From where to where the mean loss has risen, if it has for good."""
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

    def close_row(self, learning_rate: float, gradient_norm: float) -> dict[str, Any]:
        """What to report of the steps since the last row."""
        loss = self.recent_loss(self.step - self.row_step)
        seconds = max(self.seconds - self.row_seconds, 1e-9)
        row = {
            "step": self.step,
            "epoch": self.position["epoch"],
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "loss": loss,
            "perplexity": perplexity(loss),
            "words_per_s": round((self.tokens - self.row_tokens) / seconds, 1),
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "waiting": round(self.waited / seconds, 4),
        }
        self.row_step, self.row_tokens = self.step, self.tokens
        self.row_seconds, self.waited = self.seconds, 0.0
        return row

    def add_scores(self, loss: float, scores: dict[str, float]) -> bool:
        """Count a validation, and say whether it is the best so far."""
        if self.best is not None and loss >= self.best["loss"]:
            self.n_worse += 1
            return False
        self.best, self.n_worse = {**scores, "loss": loss, "step": self.step}, 0
        return True


def perplexity(loss: float) -> float:
    """The exponential, as far as there are numbers."""
    return math.exp(min(loss, 700.0))
