"""Text repeats itself: remember the token encoder's vectors of the tokens seen last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from relmo.arrays import IntArray
from relmo.text.characters import TokenIds


class TokenCache:
    """The vectors of the last `capacity` tokens, by their character and word ids; thread-safe.

    A vector belongs to the weights that made it: when `weights_identity` differs from that of the
    last call, everything is forgotten.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots: dict[bytes, int] = {}  # in order of use, the latest last
        self._vectors = torch.empty(0)
        self._identity: Hashable = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def vectors(
        self,
        ids: TokenIds,
        encode: Callable[[TokenIds], Tensor],
        weights_identity: Hashable,
    ) -> Tensor:
        """Return the vectors (U, P) of U tokens; `encode` makes those that are not remembered."""
        keys = _keys(ids)
        with self._lock:
            if weights_identity != self._identity:
                self._slots.clear()
                self._vectors = torch.empty(0)  # the new ones may be of another type or device
                self._identity = weights_identity
            slots = [self._slots.get(key, -1) for key in keys]
            known = [row for row, slot in enumerate(slots) if slot >= 0]
            old = _rows(self._vectors, [slots[row] for row in known])  # a copy: slots are reused
            for row in known:
                self._slots[keys[row]] = self._slots.pop(keys[row])
        missing = [row for row, slot in enumerate(slots) if slot < 0]
        if not missing:
            return old
        new = encode(ids.select(np.array(missing)))  # (missing, P)
        with self._lock:
            if weights_identity == self._identity:
                self._remember([keys[row] for row in missing], new)
        result = new.new_empty(len(keys), new.shape[1])
        _set_rows(result, missing, new)
        if known:
            _set_rows(result, known, old)
        return result

    def _remember(self, keys: Sequence[bytes], vectors: Tensor) -> None:
        # Another thread may have remembered some of them in the meantime, and two tokens may have
        # the same ids, where the encoder cuts them to the same characters.
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self._slots}
        rows = sorted(first.values())[: self.capacity]
        slots = []
        for row in rows:
            full = len(self._slots) >= self.capacity
            slot = self._slots.pop(next(iter(self._slots))) if full else len(self._slots)
            self._slots[keys[row]] = slot
            slots.append(slot)
        self._grow(max(slots, default=-1) + 1, vectors)
        if slots:
            _set_rows(self._vectors, slots, _rows(vectors, rows))

    def _grow(self, n: int, like: Tensor) -> None:
        """Make room for n vectors, at least doubling what there is."""
        if n > len(self._vectors):
            size = min(self.capacity, max(1024, 2 * n))
            with torch.inference_mode(False):  # calls in any mode may write into it
                grown = torch.empty(size, like.shape[1], dtype=like.dtype, device=like.device)
            grown[: len(self._vectors)] = self._vectors.reshape(-1, like.shape[1])
            self._vectors = grown


def _keys(ids: TokenIds) -> list[bytes]:
    """Return the ids of each token as bytes."""
    columns: list[IntArray] = []
    if ids.words is not None:
        columns.append(ids.words[:, None])
    if ids.characters is not None:
        columns.append(ids.characters)
    table = np.concatenate(columns, axis=1, dtype=np.int32, casting="same_kind")
    flat, size = table.tobytes(), table.shape[1] * table.itemsize
    return [flat[start : start + size] for start in range(0, len(flat), size)]


# Not tensor[rows]: that wakes PyTorch's threads for a few numbers, and they keep the cores busy
# for milliseconds afterwards, waiting for more.


def _rows(tensor: Tensor, rows: list[int]) -> Tensor:
    return tensor.index_select(0, torch.tensor(rows, dtype=torch.long, device=tensor.device))


def _set_rows(tensor: Tensor, rows: list[int], values: Tensor) -> None:
    tensor.index_copy_(0, torch.tensor(rows, dtype=torch.long, device=tensor.device), values)
