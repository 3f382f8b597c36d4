"""The types of arrays that functions exchange."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
