"""The one training loop, for whatever can learn from a batch.

A run may be killed at any time: it resumes from its last checkpoint bit for bit as if nothing had
happened. Random numbers are seeded anew at every step, from the seed, the step and the rank, so
there is no state of theirs to keep. Only `max_minutes` with a decaying learning rate is not
repeatable, as no two runs take the same time.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from relmo.config import TrainConfig
from relmo.errors import CheckpointError, ConfigError, DataError, TrainingError
from relmo.prefetch import prefetch
from relmo.progress import Advance, progress
from relmo.train.checkpoint import read_checkpoint
from relmo.train.interruption import SIGNALS, Interrupted, interruptions
from relmo.train.learner import Learner, Metric, Step, TrainingData
from relmo.train.log import MetricsLog
from relmo.train.optim import learning_rate_at
from relmo.train.report import Report, add_scores
from relmo.train.run_directory import RunDirectory
from relmo.train.seeding import derive_seed, torch_settings_kept
from relmo.train.state import TrainState
from relmo.train.world import World

__all__ = ["Learner", "Metric", "Outcome", "Step", "TrainingData", "train"]

ROW_STEPS = 10  # between rows of metrics.jsonl
BATCHES_AHEAD = 2
ALONE = World()
PLAIN_REPORT = Report()


@dataclass(frozen=True)
class Outcome:
    r"""How training ended: by "epochs", "max_tokens", "max_minutes" or "patience".

    Attributes:
        reason: the limit that was reached.
        step: updates made.
        units: units of the learner seen in them, such as words or sentences.
        seconds: time taken, of all starts.
        best: scores of the best validation and its step.
        unit: what `units` counts.

    Example:
        >>> from relmo.train import Outcome
        >>> best = {"accuracy": 0.9, "step": 40.0}
        >>> outcome = Outcome("patience", 60, 1920, 30.0, best, "words")
        >>> print(outcome.describe().replace(". ", ".\n"))
        Ended by patience after 1,920 words, 60 steps, 0.5 minutes.
        Best validation: accuracy 0.9, step 40.
    """

    reason: str
    step: int
    units: int
    seconds: float
    best: dict[str, float] | None
    unit: str

    @property
    def tokens(self) -> int:
        """The units of pre-training, which are words."""
        return self.units

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return dict(vars(self))

    def describe(self) -> str:
        """The same for people."""
        minutes = f"{self.seconds / 60:.1f} minutes"
        scores = [f"{name.replace('_', ' ')} {n:.4g}" for name, n in (self.best or {}).items()]
        return (
            f"Ended by {self.reason} after {self.units:,} {self.unit}, {self.step:,} steps, "
            f"{minutes}. Best validation: {', '.join(scores) or 'none'}."
        )


def train(
    learner: Learner,
    data: TrainingData,
    config: TrainConfig,
    run: RunDirectory | None = None,
    world: World = ALONE,
    *,
    n_epoch_units: int | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    restore_best: bool = False,
    report: Report = PLAIN_REPORT,
) -> Outcome:
    """Train until a limit is reached, validating, saving and reporting on the way.

    torch's global random state and its number of threads are left as they were.

    Args:
        learner: what is trained; the example of `ModuleLearner` shows a whole call.
        data: what it learns from.
        config: limits, recipe, and how often to validate and save.
        run: where checkpoints and metrics go, opened by the first rank; None writes nothing.
        world: the processes that train together.
        n_epoch_units: units of all ranks in an epoch, for the share that is done. None counts
            whole epochs, so that a schedule over epochs changes the rate once per epoch.
        resume: resume from the run's last checkpoint, or from the start if there is none yet.
        tensorboard: write TensorBoard's files too.
        restore_best: load the best validation's state into the learner in the end.
        report: columns of metrics.jsonl and the note beside the progress bar.

    Raises:
        ConfigError: `run` is no run directory, or was not opened.
        Interrupted: after SIGTERM or Ctrl-C, everything saved. A second Ctrl-C leaves at once.
        TrainingError: when the loss is not finite any more, or training diverges.
    """
    _check_run(run, world, needed=resume or tensorboard)
    with ExitStack() as stack:
        stack.enter_context(torch_settings_kept())
        state = _restore(learner, run, world) if resume and run else TrainState()
        loop = _Loop(learner, config, run, world, state, report, n_epoch_units, restore_best)
        if world.is_first:
            loop.talk(stack, tensorboard=tensorboard)
        received = stack.enter_context(interruptions())
        batches = prefetch(data.batches(state.position), BATCHES_AHEAD, joined=True)
        stack.callback(batches.close)
        reason = state.limit_reached(config)
        while reason is None:
            reason = loop.step(batches, received)
        loop.restore_best()
    return Outcome(reason, state.step, state.units, state.seconds, state.best, learner.unit)


def _advance_nothing(n: int, share: float | None = None, note: str = "", /) -> None:
    """For all ranks but the first."""


@dataclass
class _Loop:
    learner: Learner
    config: TrainConfig
    run: RunDirectory | None
    world: World
    state: TrainState  # of training; the learner has its own
    report: Report
    n_epoch_units: int | None
    keep_best: bool
    log: MetricsLog | None = None
    advance: Advance = _advance_nothing

    def __post_init__(self) -> None:
        self._started = time.monotonic() - self.state.seconds
        self._saved = self.state.seconds
        self._best: dict[str, Tensor] | None = None
        # The validation before the checkpoint is not in its clock: count the next row from there.
        self.state.row_seconds = min(self.state.row_seconds, self.state.seconds)

    def talk(self, stack: ExitStack, *, tensorboard: bool) -> None:
        """Show progress and write metrics until the stack is closed; on the first rank only."""
        if self.run is not None:
            log = MetricsLog(self.run.metrics, step=self.state.step, tensorboard=tensorboard)
            self.log = stack.enter_context(log)
        self.advance = stack.enter_context(progress("Training", unit=self.learner.unit))
        self.advance(self.state.units)

    def step(self, batches: Iterator[Any], received: set[int]) -> str | None:
        """Make one step and all that is due after it; return why training ends, if it does."""
        config, state = self.config, self.state
        epoch = state.position.get("epoch", 0)
        found, rate = self._learn(batches)
        interruption = self._agree(received)
        reason, better = state.limit_reached(config), False
        validates = reason is not None or state.validation_is_due(config, epoch)
        if validates or state.step % ROW_STEPS == 0:
            row = self.report.columns(state.close_row(self.learner.unit, rate, found))
            if validates:
                better = self._validate(row)
                reason = reason or state.limit_reached(config)
            if self.log is not None:
                self.log.write(row)
        late = state.seconds - self._saved >= 60 * config.checkpoint_minutes
        if better or reason or interruption or late:
            self._save(best=better)
        if interruption and not reason:
            self._interrupt(interruption)
        metric = self.learner.decides
        best = state.best[metric.name] if state.best else None
        note = self.report.note(state.recent_loss(ROW_STEPS), metric, best)
        self.advance(found.n_units, state.share_done(config, self.n_epoch_units), note)
        return reason

    def restore_best(self) -> None:
        """Load the state of the best validation into the learner, if that was asked for."""
        if self.keep_best and self.state.best is not None:
            saved = read_checkpoint(self.run.best).tensors if self.run else self._best
            self.learner.load(saved or {})

    def _learn(self, batches: Iterator[Any]) -> tuple[Step, float]:
        state = self.state
        asked = time.monotonic()
        batch, position = next(batches, (None, None))
        if position is None:
            raise DataError("There is nothing to train on. Give data with at least one example.")
        state.waited += time.monotonic() - asked
        torch.manual_seed(derive_seed(self.config.seed, state.step, self.world.rank))
        share = state.share_done(self.config, self.n_epoch_units)
        rate = learning_rate_at(self.config, state.step, share, state.reduction)
        found = self.learner.learn(batch, rate)
        state.add_step(found, position)
        self._check("loss", found.loss, found.gradient_norm)
        if rise := state.rise(self.config.warmup):
            self._give_up(f"Training diverges, the loss rose {rise}", best=True)
        return found, rate

    def _agree(self, received: set[int]) -> signal.Signals | None:
        """Take the first rank's clock, and any rank's signals."""
        elapsed = time.monotonic() - self._started if self.world.is_first else 0.0
        flags = (number in received for number in SIGNALS)
        shared = torch.tensor([elapsed, *flags], dtype=torch.float64)
        self.world.sum(shared)
        self.state.seconds, *counts = shared.tolist()
        return next((number for number, n in zip(SIGNALS, counts, strict=True) if n), None)

    def _validate(self, row: dict[str, Any]) -> bool:
        """Add scores to the row, and say whether they are the best so far."""
        metric = self.learner.decides
        scores: Mapping[str, float] = {}
        if self.world.is_first:
            scores = self.learner.evaluate()
            if metric.name not in scores:
                found = ", ".join(scores) or "no scores"
                raise TrainingError(
                    f"The learner decides by {metric.name}, but its evaluation gave {found}. "
                    f"Let it give {metric.name} too, or decide by another score."
                )
        self.world.barrier()
        shared = torch.tensor([scores.get(metric.name, 0.0)], dtype=torch.float64)
        self.world.sum(shared)
        score = shared.item()
        self._check(metric.name.replace("_", " "), score)
        add_scores(row, scores)
        self.state.row_seconds = time.monotonic() - self._started  # the next row starts here
        return self.state.add_scores(metric, score, scores, self.config)

    def _save(self, *, best: bool) -> None:
        if self.run is not None:
            tensors = self.learner.state()
            if self.world.is_first:
                self.run.save(tensors, self.state.as_dict(), best=best)
            self.world.barrier()
        elif best and self.keep_best:
            self._best = {name: t.detach().clone() for name, t in self.learner.state().items()}
        self._saved = self.state.seconds

    def _interrupt(self, interruption: signal.Signals) -> NoReturn:
        what = f"Interrupted ({interruption.name}) after step {self.state.step}"
        kept = "without a run directory nothing is saved."
        if self.run is not None:
            kept = f"everything is in {self.run.last}. Resume the run to continue."
        raise Interrupted(f"{what}; {kept}", interruption)

    def _check(self, name: str, *numbers: float) -> None:
        if not all(map(math.isfinite, numbers)):
            found = " and gradient norm ".join(map(str, numbers))
            self._give_up(f"Training broke down: {name} of {found}", best=False)

    def _give_up(self, what: str, *, best: bool) -> NoReturn:
        advice = "Lower the learning rate (train.learning_rate) or clip gradients (train.clip_norm)"
        if self.run is None:
            raise TrainingError(f"{what} at step {self.state.step}. {advice}.")
        kept = "Nothing was saved yet"
        if self.run.last.exists():
            good = self.run.best if best and self.run.best.exists() else self.run.last
            kept = f"The last good checkpoint is {good}"
        raise TrainingError(
            f"{what} at step {self.state.step}. {kept}. {advice}, and resume the run.",
            settings=["resume"],
        )


def _check_run(run: RunDirectory | None, world: World, *, needed: bool) -> None:
    if run is None:
        if needed:
            raise ConfigError("Resuming and TensorBoard need a run directory. Give `run`.")
        return
    if not isinstance(run, RunDirectory):
        raise ConfigError(
            f"`run` is of type {type(run).__name__}, expected a RunDirectory. "
            "Give RunDirectory(path), opened."
        )
    if world.is_first and not run.last.parent.is_dir():
        raise ConfigError(
            f"The run directory {run.path} is not open. "
            'Train inside `with run.opened("", resume=False):`.'
        )


def _restore(learner: Learner, run: RunDirectory, world: World) -> TrainState:
    state = TrainState()
    if run.last.exists():
        checkpoint = read_checkpoint(run.last)
        try:
            state = TrainState.from_dict(checkpoint.values)
        except TypeError as error:
            raise CheckpointError(f"{run.last} is of another version of relmo ({error}).") from None
        learner.load(checkpoint.tensors)
    steps = torch.tensor([float(state.step)], dtype=torch.float64)
    world.sum(steps)
    if steps.item() != state.step * world.size:
        raise CheckpointError(
            f"Not all processes see the same {run.last}. Keep runs where all machines can read."
        )
    return state
