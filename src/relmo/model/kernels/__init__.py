"""The fused LSTM cell of `cell.c`, where it was compiled; PyTorch does the same elsewhere, slower.

`RELMO_KERNEL=off` in the environment switches it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable

Cell = Callable[[int, int, int, int, int, int, float], None]


def _load() -> tuple[Cell | None, str]:
    if os.environ.get("RELMO_KERNEL", "on") == "off":
        return None, "PyTorch (the C kernel is switched off by RELMO_KERNEL=off)"
    try:
        from relmo.model.kernels import _cell
    except ImportError as error:
        return None, f"PyTorch (the C kernel was not compiled when relmo was installed: {error})"
    return _cell.cell, f"C kernel, {_cell.instruction_set()}"


# cell(from_input, from_state, c, m, n, dim, clip) takes addresses of float32 arrays, or is None.
cell, description = _load()
