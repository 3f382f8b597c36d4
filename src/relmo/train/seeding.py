"""Random numbers: seeds that follow from the step, and torch's global state left as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(*numbers: int) -> int:
    """One seed for each combination of numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest(), "big")


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """Restore torch's global random state and its number of threads, also after an exception."""
    n_threads = torch.get_num_threads()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            if torch.get_num_threads() != n_threads:
                torch.set_num_threads(n_threads)
