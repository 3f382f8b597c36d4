"""The files of a training run.

config.toml         every setting
inputs.json         what it was given to begin with, where that is not a setting
environment.json    versions, machine and command of the latest start
metrics.jsonl       one row every few steps
checkpoints/        last.safetensors to resume from, best.safetensors by validation
model/              the exported model
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from relmo import __version__
from relmo.errors import ConfigError, DataError, RelmoWarning
from relmo.files import check_writable, written_atomically
from relmo.machine import describe_machine
from relmo.train.checkpoint import link_checkpoint, write_checkpoint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What may change when a run is resumed: limits, and what helps after a divergence.
MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("epochs", "max_tokens", "max_minutes", "patience", "checkpoint_minutes"),
        *("learning_rate", "clip_norm", "clip_value"),
    )
)


class RunDirectory:
    """The files of one training run, by name; nothing is touched until it is opened.

    Attributes:
        path: the directory itself.
        config: config.toml, every setting.
        metrics: metrics.jsonl, one row every few steps.
        last: the checkpoint to resume from.
        best: the checkpoint of the best validation.

    Example:
        >>> from relmo.train import RunDirectory
        >>> run = RunDirectory("my-run")
        >>> with run.opened("hidden = 32", resume=False):
        ...     pass  # train(learner, data, config, run)
        >>> run.config.read_text()
        'hidden = 32'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.config = path / "config.toml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.last = path / "checkpoints" / "last.safetensors"
        self.best = path / "checkpoints" / "best.safetensors"
        self.model = path / "model"
        self.inputs = path / "inputs.json"

    @contextmanager
    def opened(
        self,
        config: str,
        *,
        resume: bool,
        before: str | None = None,
        may_change: Collection[str] = MAY_CHANGE,
    ) -> Iterator[None]:
        """Start or resume a run; for the first process only, and only one at a time.

        Args:
            config: all settings as TOML, kept in config.toml.
            resume: resume the run that is here; otherwise there must be nothing to lose.
            before: config.toml with the defaults of settings that were added since it was written.
            may_change: settings, as "table.name", in which a resumed run may differ.
        """
        if resume and not self.config.is_file():
            raise DataError(
                f"There is no run in {self.path} to resume. Start a new one.", settings=["resume"]
            )
        check_writable(self.path, directory=True)
        self.path.mkdir(exist_ok=True)
        with _locked(self.path):
            if resume:
                _check_same(self.config, before, config, may_change)
            else:
                self._check_not_begun()
            self.last.parent.mkdir(exist_ok=True)
            for partial in self.last.parent.glob(".*"):  # ours or safetensors', of a killed process
                partial.unlink()
            if not resume:
                self.write_config(config)
            yield

    def write_config(self, config: str) -> None:
        """Write config.toml; when resuming, only after everything was checked."""
        with written_atomically(self.config) as written:
            written.write_text(config, encoding="utf-8", newline="\n")

    def _check_not_begun(self) -> None:
        """Refuse a directory with a run or foreign files; without a checkpoint it is no run."""
        known = {self.config, self.inputs, self.environment, self.metrics, self.last.parent}
        strange = set(self.path.iterdir()) - known - {self.path / ".lock"}
        if self.last.exists() or strange:
            what = "a run" if self.last.exists() else min(path.name for path in strange)
            raise DataError(
                f"{self.path} already holds {what}. Resume a run, or choose another directory.",
                settings=["resume"],
            )

    def write_environment(self, **more: Any) -> None:
        """Write versions, machine and command; `more` is for what only the caller knows."""
        values = {
            "relmo": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "machine": describe_machine().as_dict(),
            "threads": torch.get_num_threads(),
            "command": shlex.join(sys.argv),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **more,
        }
        with written_atomically(self.environment) as written:
            written.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    def save(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, best: bool) -> None:
        """Write the last checkpoint, and let the best be the same file if it is."""
        if not best:
            write_checkpoint(self.last, tensors, values)
            return
        # In this order: killed in between, a run resumes from the older one to the same best.
        write_checkpoint(self.best, tensors, values)
        link_checkpoint(self.best, self.last)


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Keep other processes out until the block, or this process, ends."""
    lock = FileLock(run / ".lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise DataError(f"Another process is training in {run}. Stop it first.") from None
    except (OSError, NotImplementedError) as error:  # some network file systems have no locks
        reason = getattr(error, "strerror", None) or error
        warnings.warn(
            f"Cannot lock {run} ({reason}): see to it that only one job writes there.",
            RelmoWarning,
            stacklevel=4,
        )
    try:
        yield
    finally:
        lock.release()


def _check_same(path: Path, before: str | None, config: str, may_change: Collection[str]) -> None:
    try:
        old = _flat(tomllib.loads(before or path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is damaged: {error}. Restore it, or start a new run.") from None
    new = _flat(tomllib.loads(config))
    for name in sorted((old.keys() | new.keys()) - set(may_change)):
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{path} has {name} = {old.get(name)!r}, but {new.get(name)!r} was asked for. A "
                "run is resumed with its own settings: leave that out, or start a new run."
            )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return values
