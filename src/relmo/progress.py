"""Progress bars on stderr: on terminals only, only for work that lasts, gone when it is over."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, Task


class Advance(Protocol):
    """What a block under `progress` calls."""

    def __call__(self, n: int, share: float | None = None, note: str = "", /) -> None:
        """Say that n more are done and, where no total was given, which share that makes.

        A note is shown after the rate.
        """


DELAY_SECONDS = 2.0
_screen = threading.Lock()  # a bar inside another's work stays hidden: two would garble each other


@contextmanager
def progress(description: str, total: int | None = None, unit: str = "items") -> Iterator[Advance]:
    """Yield ``advance(n)``, for any thread to call; "bytes" are shown as kB, MB, GB."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda n, share=None, note="": None
        return
    bar = _Bar(description, total, unit)
    timer = threading.Timer(DELAY_SECONDS, bar.show)  # a timer, as work may stall at its start
    timer.start()
    try:
        yield bar.advance
    finally:
        timer.cancel()
        bar.close()


class _Bar:
    def __init__(self, description: str, total: int | None, unit: str) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._done, self._next_update, self._closed, self._note = 0, 0.0, False, ""
        self._shown: Progress | None = None
        self._lock = threading.Lock()

    def advance(self, n: int, share: float | None = None, note: str = "", /) -> None:
        with self._lock:
            self._done += n
            self._note = note
            if share:
                self._total = int(self._done / share)
            # rich's rate spans its last 1,000 updates: too many of them make it jump
            if self._shown is not None and time.monotonic() >= self._next_update:
                task = self._shown.tasks[0]
                task.total = self._total  # as an argument of update it would forget the rate
                self._shown.update(task.id, completed=self._done, note=note)
                self._next_update = time.monotonic() + 0.1

    def show(self) -> None:
        with self._lock:
            if not self._closed and _screen.acquire(blocking=False):
                self._shown = _rich_progress(self._unit)
                self._shown.add_task(
                    self._description, total=self._total, completed=self._done, note=self._note
                )
                self._shown.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._shown is not None:
                self._shown.stop()
                _screen.release()


def _rich_progress(unit: str) -> Progress:
    from rich import console, filesize, progress, table, text

    size = filesize.decimal if unit == "bytes" else "{:,}".format

    class Status(progress.ProgressColumn):
        def render(self, task: Task) -> text.Text:
            status = "/".join(size(int(n)) for n in (task.completed, task.total) if n is not None)
            if task.speed is not None:
                rate = size(int(task.speed)) if unit == "bytes" else f"{task.speed:,.1f} {unit}"
                status += f"  {rate}/s"
            if task.time_remaining is not None:
                status += f"  {timedelta(seconds=int(task.time_remaining))} left"
            note = task.fields["note"]
            return text.Text(f"{status}  {note}" if note else status)

    description = progress.TextColumn("{task.description}", markup=False)
    columns = (description, progress.BarColumn(None), Status(table.Column(no_wrap=True)))
    return progress.Progress(
        *columns,
        console=console.Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # else what is printed as data would end up on stderr
        speed_estimate_period=600,  # seconds: steps may be minutes apart
    )
