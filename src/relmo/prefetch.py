"""Prefetch: make the next items in another thread while this one works."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from queue import Empty, Queue
from typing import TypeVar, cast

T = TypeVar("T")


def prefetch(items: Iterable[T], n: int, *, joined: bool = False) -> Generator[T, None, None]:
    """Yield the same items, made in another thread that is at most n items ahead.

    Args:
        items: what to read.
        n: how many items to hold ready.
        joined: on `close`, wait until the thread has made its current item. Needed where PyTorch
            makes them: Python aborts if it ends while a thread is inside PyTorch.
    """
    queue: Queue[tuple[T | None, BaseException | None]] = Queue(n)
    gone = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                queue.put((item, None))
                if gone.is_set():
                    return
            queue.put((None, StopIteration()))
        except BaseException as error:  # raised again where the items are used
            queue.put((None, error))

    # A daemon: somebody who presses Ctrl-C shall not wait for standard input to say something.
    thread = threading.Thread(target=produce, name="relmo-reader", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield cast(T, item)
    finally:
        gone.set()
        with suppress(Empty):
            while True:  # makes room for the item that the thread may be about to put
                queue.get_nowait()
        if joined:
            thread.join()
