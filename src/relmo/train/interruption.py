"""SIGTERM and Ctrl-C while training: finish the step and save first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relmo.errors import TrainingError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(TrainingError):
    """Training that was asked to stop, and saved; `exit_code` is what a shell expects."""

    def __init__(self, message: str, number: signal.Signals) -> None:
        super().__init__(message, settings=["resume"])
        self.exit_code = 128 + number


@contextmanager
def interruptions() -> Iterator[set[int]]:
    """Collect signals instead of ending at once; a second Ctrl-C ends at once.

    Signals that the process ignores stay ignored, and other threads than the main one get none.
    """
    received: set[int] = set()

    def receive(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.add(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
