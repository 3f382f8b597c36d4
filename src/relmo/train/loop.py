"""The one training loop, for whatever can learn from a batch.

A run may be killed at any time: it goes on from its last checkpoint bit for bit as if nothing had
happened. Random numbers are seeded anew at every step, from the seed, the step and the rank, so
there is no state of theirs to keep. Only `max_minutes` with a decaying learning rate is not
repeatable, as no two runs take the same time.
"""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import torch
from torch import Tensor

from relmo.config import TrainConfig
from relmo.errors import CheckpointError, DataError, TrainingError
from relmo.prefetch import prefetch
from relmo.progress import Advance, progress
from relmo.train.checkpoint import read_checkpoint
from relmo.train.course import Course, perplexity
from relmo.train.interruption import SIGNALS, Interrupted, interruptions
from relmo.train.log import MetricsLog
from relmo.train.optim import learning_rate_at
from relmo.train.run_directory import RunDirectory
from relmo.train.world import World

ROW_STEPS = 10  # between rows of metrics.jsonl
BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Step:
    """What an update found: the mean loss of all ranks' predictions, and how many tokens."""

    loss: float
    n_tokens: int
    gradient_norm: float


class Learner(Protocol):
    """What is trained. All but `evaluate` is called on every rank at the same time."""

    def learn(self, batch: Any, learning_rate: float) -> Step:
        """Make one update; the same loss, tokens and norm on every rank."""

    def evaluate(self) -> dict[str, float]:
        """Scores on held-out data, "loss" among them, lower is better; on the first rank only."""

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on; ranks may gather what only they know."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go back to such a state."""


class Source(Protocol):
    """What is learned from, without end."""

    def batches(self, position: dict[str, int]) -> Iterator[tuple[Any, dict[str, int]]]:
        """Batches from a position on (none is the start), each with the position after it.

        A position is the same on every rank, and has "epoch", the number of finished epochs. It is
        read in a thread: no random numbers of torch's default generator here.
        """


@dataclass(frozen=True)
class Outcome:
    """How training ended: by "epochs", "max_tokens", "max_minutes" or "patience"."""

    reason: str
    step: int
    tokens: int
    seconds: float
    best: dict[str, float] | None

    def describe(self) -> str:
        """The same for people."""
        minutes = f"{self.seconds / 60:.1f} minutes"
        scores = [f"{name.replace('_', ' ')} {n:.4g}" for name, n in (self.best or {}).items()]
        return (
            f"Ended by {self.reason} after {self.tokens:,} tokens, {self.step:,} steps, {minutes}. "
            f"Best validation: {', '.join(scores) or 'none'}."
        )


def train(
    learner: Learner,
    source: Source,
    config: TrainConfig,
    run: RunDirectory,
    world: World,
    *,
    n_epoch_tokens: int,
    resume: bool = False,
    tensorboard: bool = False,
) -> Outcome:
    """Train until a limit is reached, validating, saving and reporting on the way.

    Args:
        learner: what is trained.
        source: what it learns from.
        config: limits, recipe, and how often to validate and save.
        run: where checkpoints and metrics go; opened by the first rank.
        world: the processes that train together.
        n_epoch_tokens: tokens of all ranks in an epoch, for the share that is done.
        resume: go on from the run's last checkpoint, or from the start if there is none yet.
        tensorboard: write TensorBoard's files too.

    Raises:
        Interrupted: after SIGTERM or Ctrl-C, everything saved. A second Ctrl-C leaves at once.
        TrainingError: when the loss is no number any more, or rises without end.
    """
    course = _restore(learner, run, world) if resume else Course()
    training = _Training(learner, config, run, world, n_epoch_tokens, course)
    with ExitStack() as stack:
        log, advance = None, cast(Advance, lambda *_: None)
        if world.is_first:
            log = MetricsLog(run.metrics, step=course.step, tensorboard=tensorboard)
            stack.enter_context(log)
            advance = stack.enter_context(progress("Training", unit="words"))
            advance(course.tokens)
        received = stack.enter_context(interruptions())
        batches = prefetch(source.batches(course.position), BATCHES_AHEAD, joined=True)
        stack.callback(batches.close)
        reason = course.limit_reached(config)
        while reason is None:
            reason = training.step(batches, log, advance, received)
    return Outcome(reason, course.step, course.tokens, course.seconds, course.best)


@dataclass
class _Training:
    learner: Learner
    config: TrainConfig
    run: RunDirectory
    world: World
    n_epoch_tokens: int
    course: Course

    def __post_init__(self) -> None:
        self._started = time.monotonic() - self.course.seconds
        self._saved = self.course.seconds
        # The validation before the checkpoint is not in its clock: count the next row from there.
        self.course.row_seconds = min(self.course.row_seconds, self.course.seconds)

    def step(
        self, batches: Iterator[Any], log: MetricsLog | None, advance: Advance, received: set[int]
    ) -> str | None:
        """Make one step and all that is due after it; return why training ends, if it does."""
        config, course = self.config, self.course
        found, rate = self._learn(batches)
        interruption = self._agree(received)
        reason, better = course.limit_reached(config), False
        validates = reason is not None or course.step % config.validate_every == 0
        if validates or course.step % ROW_STEPS == 0:
            row = course.close_row(rate, found.gradient_norm)
            if validates:
                better = self._validate(row)
                reason = reason or course.limit_reached(config)
            if log is not None:
                log.write(row)
        late = course.seconds - self._saved >= 60 * config.checkpoint_minutes
        if better or reason or interruption or late:
            self._save(best=better)
        if interruption and not reason:
            raise Interrupted(
                f"Interrupted ({interruption.name}) after step {course.step}; everything is in "
                f"{self.run.last}. Continue with --resume.",
                interruption,
            )
        loss = course.recent_loss(ROW_STEPS)
        note = f"loss {loss:.3f}  perplexity {perplexity(loss):,.1f}"
        advance(found.n_tokens, course.share_done(config, self.n_epoch_tokens), note)
        return reason

    def _learn(self, batches: Iterator[Any]) -> tuple[Step, float]:
        course = self.course
        asked = time.monotonic()
        batch, position = next(batches, (None, None))
        if position is None:
            raise DataError("There is nothing to train on. Give text with at least one sentence.")
        course.waited += time.monotonic() - asked
        torch.manual_seed(_derive_seed(self.config.seed, course.step, self.world.rank))
        share = course.share_done(self.config, self.n_epoch_tokens)
        rate = learning_rate_at(self.config, course.step, share)
        found = self.learner.learn(batch, rate)
        course.add_step(found.loss, found.n_tokens, position)
        self._check(found.loss, found.gradient_norm)
        if rise := course.rise(self.config.warmup):
            self._give_up(f"Training diverges, the loss rose {rise}", self.run.best)
        return found, rate

    def _agree(self, received: set[int]) -> signal.Signals | None:
        """Take the first rank's clock, and any rank's signals."""
        elapsed = time.monotonic() - self._started if self.world.is_first else 0.0
        flags = (number in received for number in SIGNALS)
        shared = torch.tensor([elapsed, *flags], dtype=torch.float64)
        self.world.sum(shared)
        self.course.seconds, *counts = shared.tolist()
        return next((number for number, n in zip(SIGNALS, counts, strict=True) if n), None)

    def _validate(self, row: dict[str, Any]) -> bool:
        """Add scores to the row, and say whether they are the best so far."""
        scores = self.learner.evaluate() if self.world.is_first else {}
        self.world.barrier()
        shared = torch.tensor([scores.get("loss", 0.0)], dtype=torch.float64)
        self.world.sum(shared)
        self._check(shared.item())
        row |= {"valid_loss" if name == "loss" else name: score for name, score in scores.items()}
        self.course.row_seconds = time.monotonic() - self._started  # the next row starts here
        return self.course.add_scores(shared.item(), scores)

    def _save(self, *, best: bool) -> None:
        tensors = self.learner.state()
        if self.world.is_first:
            self.run.save(tensors, asdict(self.course), best=best)
        self.world.barrier()
        self._saved = self.course.seconds

    def _check(self, *numbers: float) -> None:
        if not all(map(math.isfinite, numbers)):
            found = " and gradient norm ".join(map(str, numbers))
            self._give_up(f"Training broke down with a loss of {found}", self.run.last)

    def _give_up(self, what: str, good: Path) -> NoReturn:
        good = good if good.exists() else self.run.last
        kept = f"The last good checkpoint is {good}" if good.exists() else "Nothing was saved yet"
        raise TrainingError(
            f"{what} at step {self.course.step}. {kept}. Lower train.learning_rate or "
            "train.clip_norm, and continue with --resume."
        )


def _restore(learner: Learner, run: RunDirectory, world: World) -> Course:
    course = Course()
    if run.last.exists():
        checkpoint = read_checkpoint(run.last)
        try:
            course = Course(**checkpoint.values)
        except TypeError as error:
            raise CheckpointError(f"{run.last} is of another version of relmo ({error}).") from None
        learner.load(checkpoint.tensors)
    steps = torch.tensor([float(course.step)], dtype=torch.float64)
    world.sum(steps)
    if steps.item() != course.step * world.size:
        raise CheckpointError(
            f"Not all processes see the same {run.last}. Keep runs where all machines can read."
        )
    return course


def _derive_seed(*numbers: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")
