"""A falling curve in a terminal: columns of blocks, or of # where there are none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCKS = " ▁▂▃▄▅▆▇█"
PLAIN = " #"
WIDTH, HEIGHT = 60, 8  # of the columns, in characters


def blocks_for(encoding: str) -> str:
    """The finest blocks, empty to full, that an encoding can write."""
    try:
        BLOCKS.encode(encoding)
    except UnicodeEncodeError:
        return PLAIN
    return BLOCKS


def draw_chart(points: Sequence[tuple[float, float]], blocks: str = BLOCKS) -> list[str]:
    """Lines of a chart of positive values over seconds, on a logarithmic scale.

    Args:
        points: seconds, rising, and a value each; at least one.
        blocks: what a cell is drawn with, empty to full.
    """
    seconds, values = np.array(points).T
    times = np.linspace(seconds[0], seconds[-1], WIDTH)
    heights = np.interp(times, seconds, np.log(values))
    low, high = heights.min(), heights.max()
    # The lowest column is one cell high, so that the curve is seen to go on.
    shares = (heights - low) / max(high - low, 1e-9) * (HEIGHT - 1) + 1
    n_parts = len(blocks) - 1
    filled = np.rint(shares * n_parts).astype(int)  # parts of cells in each column
    rows = []
    for below in reversed(range(HEIGHT)):  # full cells under this row
        cells = "".join(blocks[n] for n in (filled - below * n_parts).clip(0, n_parts))
        label = {HEIGHT - 1: np.exp(high), 0: np.exp(low)}.get(below)
        rows.append(f"{'' if label is None else f'{label:,.0f}':>8} {cells}".rstrip())
    end = f"{seconds[-1]:.0f} s"
    start = f"{seconds[0]:.0f} s"
    return [*rows, f"{'':>8} {start}{end:>{WIDTH - len(start)}}"]
