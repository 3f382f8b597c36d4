"""Run work on text in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from relmo.errors import DataError

T = TypeVar("T")
R = TypeVar("R")
Advance = Callable[[int], object]


def work_in_processes(
    work: Callable[[T, Advance], R], items: Sequence[T], n_workers: int, advance: Advance
) -> list[R]:
    """Run `work` on each item in a process pool; return its results in order.

    `advance` receives the progress that `work` reports. After an error in one of the processes, or
    Ctrl-C in this one, each process stops when it next reports progress.
    """
    context = multiprocessing.get_context("spawn")
    n_done, stop = context.Value("q"), context.Event()
    executor = ProcessPoolExecutor(
        n_workers, mp_context=context, initializer=_start_worker, initargs=(n_done, stop)
    )
    n_seen = 0
    try:
        futures = [executor.submit(_work, work, item) for item in items]
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            n_new = n_done.value - n_seen
            advance(n_new)
            n_seen += n_new
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise worker_died(error, "close other programs") from None
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)


def worker_died(error: BrokenProcessPool, advice: str) -> DataError:
    """The error for a worker process that died; `advice` says what to do if memory ran out."""
    return DataError(
        f"A worker process has died ({error}). If memory ran out, {advice}. In a script of your "
        'own, call relmo under `if __name__ == "__main__":`, as every worker imports the script.'
    )


_worker: tuple[Any, Any]  # in a worker process: the shared counter and the stop event


def _start_worker(n_done: Any, stop: Any) -> None:
    global _worker
    _worker = n_done, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(work: Callable[[T, Advance], R], item: T) -> R:
    return work(item, _advance)


def _advance(n: int) -> None:
    n_done, stop = _worker
    if stop.is_set():
        raise SystemExit("another worker failed, or the parent was interrupted")
    with n_done.get_lock():
        n_done.value += n
