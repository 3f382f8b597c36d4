"""The loops of `cell.c`, where they were compiled; PyTorch does the same elsewhere, slower.

`RELMO_KERNEL=off` in the environment switches them off.
"""

from __future__ import annotations

import os
from types import ModuleType


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("RELMO_KERNEL", "on") == "off":
        return None, "PyTorch (the C kernel is switched off by RELMO_KERNEL=off)"
    try:
        from relmo.model.kernels import _cell
    except ImportError as error:
        return None, f"PyTorch (the C kernel was not compiled when relmo was installed: {error})"
    return _cell, f"C kernel, {_cell.instruction_set()}"


loops, description = _load()
