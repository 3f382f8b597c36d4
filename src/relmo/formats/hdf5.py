"""Read HDF5 from untrusted files: damage and attacks become a `FormatError`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from relmo.errors import FormatError
from relmo.formats.model_files import MAX_WEIGHTS_BYTES, ModelFiles, largest_unpacked

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

# Which error h5py raises for a damaged file depends on where the damage is.
DAMAGED = (OSError, RuntimeError, LookupError, ValueError, TypeError)


def hdf5_names(source: ModelFiles) -> list[str]:
    """The files that begin with the signature of HDF5."""
    return [n for n in source.names() if source.head(n, len(HDF5_SIGNATURE)) == HDF5_SIGNATURE]


class Hdf5File:
    """An HDF5 file of a model, open until the `with` block ends."""

    def __init__(self, source: ModelFiles, name: str) -> None:
        self.where = f"{source.where}: {name}"
        size = source.size(name)
        if size > MAX_WEIGHTS_BYTES:
            raise FormatError(f"{self.where} is larger than any model ({MAX_WEIGHTS_BYTES:,}).")
        self._room = largest_unpacked(size)  # bytes that its datasets may still allocate
        with self._named("the file"):
            self._root = h5py.File(source.path(name) or source.open(name), "r")

    def __enter__(self) -> Hdf5File:
        return self

    def __exit__(self, *_: object) -> None:
        self._root.close()

    def __contains__(self, name: str) -> bool:
        with self._named(name):
            return self._find(name) is not None

    def read(self, name: str, *shape: int | None) -> np.ndarray:
        """Read a float dataset of exactly this shape; None matches any length."""
        with self._named(name):
            item = self._find(name)
            if item is None:
                raise FormatError(f"{self.where}: dataset {name} {_shown(shape)} is missing.")
            if not isinstance(item, h5py.Dataset) or item.dtype.kind != "f":
                raise FormatError(
                    f"{self.where}: {name} is not a dataset of floating-point numbers."
                )
            if item.external or item.is_virtual:
                raise FormatError(f"{self.where}: dataset {name} points to another file. Refused.")
            self._check_shape(item, name, shape)
            return np.asarray(item[()], dtype=np.float32)

    def _find(self, name: str) -> Any:
        """Follow hard links only: other links may lead to another file, or in circles."""
        item: Any = self._root
        for part in name.split("/"):
            key = part.encode()
            if not isinstance(item, h5py.Group) or not item.id.links.exists(key):
                return None
            if item.id.links.get_info(key).type != h5py.h5l.TYPE_HARD:
                raise FormatError(
                    f"{self.where}: {name} is a link, which may point to another file. Refused."
                )
            item = item[part]
        return item

    def _check_shape(self, item: h5py.Dataset, name: str, shape: tuple[int | None, ...]) -> None:
        found = item.shape or ()
        if len(found) != len(shape) or any(
            e not in (None, f) for e, f in zip(shape, found, strict=True)
        ):
            raise FormatError(
                f"{self.where}: dataset {name} has shape {_shown(found)}, but the options say "
                f"{_shown(shape)}. Weights and options belong to different models."
            )
        # A tiny compressed or empty dataset, or its chunks, can ask for any amount of memory.
        self._room -= item.dtype.itemsize * max(math.prod(found), math.prod(item.chunks or ()))
        if self._room < 0:
            raise FormatError(
                f"{self.where}: dataset {name} {_shown(found)} asks for far more memory than a "
                "file of this size can fill. Refused."
            )

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except DAMAGED as error:
            raise FormatError(
                f"{self.where} is damaged or cut short: {what} cannot be read ({error}). "
                "Download it again."
            ) from None


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if n is None else str(n) for n in shape)}]"
