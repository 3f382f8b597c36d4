"""Read pickled tensors from untrusted files without running code from the pickle.

`weights_only=True` refuses anything but tensors; damage and attacks become a `FormatError`.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from relmo.errors import FormatError
from relmo.formats.model_files import DAMAGED as DAMAGED_ARCHIVE
from relmo.formats.model_files import MAX_WEIGHTS_BYTES, ModelFiles, read_bytes

# Which error torch.load raises for a damaged pickle depends on where the damage is.
DAMAGED = (
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    EOFError,
    OSError,
    struct.error,
)


def read_state_dict(source: ModelFiles, name: str) -> dict[str, Tensor]:
    """Read a pickled dict of tensors; anything else in the pickle is refused and never run."""
    data = read_bytes(source, name, MAX_WEIGHTS_BYTES)
    where = f"{source.where}: {name}"
    _refuse_bomb(data, where)
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0]
        raise FormatError(
            f"{where} holds more than tensors, or is damaged ({reason}). It was refused and "
            "nothing in it was run."
        ) from None
    except DAMAGED as error:
        reason = str(error).split("\n")[0]
        raise FormatError(f"{where} is damaged ({reason}). Download it again.") from None
    if not isinstance(state, Mapping) or not all(map(_is_plain, state.values())):
        raise FormatError(f"{where} is not a dict of plain floating-point tensors.")
    tensors = {str(key): tensor.detach() for key, tensor in state.items()}
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
    for key, tensor in tensors.items():  # no shared storage: safetensors could not write it
        if users[tensor.untyped_storage().data_ptr()] > 1:
            tensors[key] = tensor.clone()
    return tensors


def _refuse_bomb(data: bytes, where: str) -> None:
    """Refuse a compressed archive: PyTorch never compresses its zip archives."""
    if not data.startswith(b"PK"):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
    except DAMAGED_ARCHIVE as error:
        raise FormatError(f"{where} is damaged ({error}). Download it again.") from None
    if n_bytes > len(data):
        raise FormatError(
            f"{where} would grow from {len(data):,} to {n_bytes:,} bytes, which no model does. "
            "Refused."
        )


def _is_plain(value: object) -> bool:
    """Whether a tensor is dense: with a stride of 0, a small file could ask for terabytes."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and not value.is_nested
        and value.device.type == "cpu"
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )
