"""safetensors files mapped into memory as NumPy arrays: nothing is read before it is used."""

from __future__ import annotations

import json
import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open


class MappedArrays(NamedTuple):
    """Arrays by name, read-only, and the memory that they lie in."""

    arrays: dict[str, NDArray[Any]]
    memory: mmap.mmap


def map_safetensors(path: Path) -> MappedArrays:
    """Map a safetensors file of integers and floats.

    Raises:
        OSError: The file cannot be read.
        SafetensorError: Its header does not fit the file.
        ValueError: It holds another type of numbers than NumPy has.
    """
    with safe_open(path, "np"):
        pass  # refuses a header that does not fit its file
    with path.open("rb") as file:
        (n_header,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n_header))
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, bits = entry["dtype"][0].lower(), int(entry["dtype"][1:])  # "F32", "I64", "U8"
        offset = 8 + n_header + entry["data_offsets"][0]
        values = np.frombuffer(memory, f"<{kind}{bits // 8}", math.prod(entry["shape"]), offset)
        arrays[name] = values.reshape(entry["shape"])
    return MappedArrays(arrays, memory)
