"""The two directions in two threads.

They are independent. Two threads with half of the cores each are faster than one after the other
with all cores: no thread waits for another inside a matrix product.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

_pool: ThreadPoolExecutor | None = None
_spared = (
    threading.local()
)  # .n_threads: what `run_in_two_threads` may use inside `between_products`


@contextmanager
def between_products() -> Iterator[None]:
    """Use one core for everything but `run_in_two_threads`.

    PyTorch's threads go on spinning for milliseconds after small work that they shared, on the very
    cores that the two directions want next.
    """
    outer, n_threads = getattr(_spared, "n_threads", None), torch.get_num_threads()
    _spared.n_threads = outer or n_threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _spared.n_threads = outer
        torch.set_num_threads(n_threads)


def run_in_two_threads(first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
    """Make both calls at the same time, where there are two cores and no gradients are wanted."""
    own = torch.get_num_threads()
    n_threads = getattr(_spared, "n_threads", None) or own
    if n_threads < 2 or torch.is_grad_enabled():
        return first(), second()
    inference = torch.is_inference_mode_enabled()

    def second_elsewhere() -> T:
        torch.set_num_threads(n_threads // 2)  # PyTorch keeps this, and the modes, by thread
        with torch.inference_mode(inference), torch.no_grad():  # in this order: False means grad
            return second()

    pending = _executor().submit(second_elsewhere)
    try:
        torch.set_num_threads(n_threads - n_threads // 2)
        result = first()
    finally:
        wait([pending])  # in any case: it writes into the caller's tensors
        torch.set_num_threads(own)
    return result, pending.result()


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(thread_name_prefix="relmo-direction")
    return _pool


def _lose_pool() -> None:
    """A forked process has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_pool)
