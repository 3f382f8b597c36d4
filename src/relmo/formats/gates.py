"""Convert LSTM gates between bilm-tf and relmo: their order, and the forget bias of 1.

bilm-tf adds 1 to the forget gate's bias at run time and does not store it; relmo stores the sum.
"""

from __future__ import annotations

import numpy as np


def reorder_gates(array: np.ndarray) -> np.ndarray:
    """Reorder the last axis from blocks i, g, f, o to i, f, g, o, or back."""
    i, second, third, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, third, second, o], axis=-1)


def add_forget_bias(bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add 1 to the forget gate's bias; return the float32 result and its rounding remainder."""
    rounded, remainder, forget = bias.copy(), np.zeros_like(bias), _forget_block(bias)
    exact = bias[forget].astype(np.float64)
    rounded[forget] = exact + 1.0
    # In this order float64 is exact, even for a bias as small as 1e-30.
    remainder[forget] = exact - (rounded[forget].astype(np.float64) - 1.0)
    return rounded, remainder


def remove_forget_bias(bias: np.ndarray, remainder: np.ndarray) -> np.ndarray:
    """Undo `add_forget_bias`; the remainder of a bias that was fine-tuned since is ignored."""
    stored, forget = bias.copy(), _forget_block(bias)
    less = bias[forget].astype(np.float64) - 1.0
    # 0.0 + -0.0 is 0.0, which would lose a sign.
    stored[forget] = np.where(less == 0.0, remainder[forget], less + remainder[forget])
    stale = add_forget_bias(stored)[0][forget] != bias[forget]
    stored[forget] = np.where(stale, less, stored[forget])
    return stored


def _forget_block(bias: np.ndarray) -> slice:
    """The forget gate's block, the second of four."""
    return slice(len(bias) // 4, len(bias) // 2)
