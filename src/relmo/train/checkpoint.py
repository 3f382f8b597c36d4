"""Checkpoints: one safetensors file each, with everything that is no tensor as JSON in its header.

Reading one runs no code, and it appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from relmo.errors import CheckpointError, DataError
from relmo.files import written_atomically


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and everything else."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write a checkpoint, all of it or nothing; an older one of that name is there until then."""
    contents: dict[str, Tensor] = {}
    written = set()  # safetensors takes no memory twice, but modules may share weights
    for name, tensor in tensors.items():
        own = tensor.detach().contiguous()
        place = own.untyped_storage().data_ptr()
        contents[name] = own.clone() if place and place in written else own
        written.add(place)
    try:
        with written_atomically(path) as partial:
            safetensors.torch.save_file(contents, partial, {"values": json.dumps(dict(values))})
    except (DataError, SafetensorError) as error:
        kept = " The older checkpoint is untouched." if path.exists() else ""
        raise CheckpointError(
            f"Cannot save {path}: {error}. Free some space or change the limits.{kept}"
        ) from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, or say which other one there is."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            values = json.loads((file.metadata() or {})["values"])
            if not isinstance(values, dict):
                raise ValueError("its values are no table")
            # Copies: a mapped file's alignment may change the last bits of what is computed.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        others = [p for p in path.parent.glob("*.safetensors") if not _same(p, path)]
        advice = "".join(f" You can copy {other} over it." for other in others)
        raise CheckpointError(
            f"{path} is not a checkpoint, or damaged ({error}).{advice or ' Start a new run.'}"
        ) from None
    return Checkpoint(tensors, values)


def link_checkpoint(source: Path, target: Path) -> None:
    """Make `target` another name of `source`; a copy where the file system has no such thing."""
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        partial.hardlink_to(source)
        partial.replace(target)
    except OSError:
        with written_atomically(target) as copy:
            shutil.copyfile(source, copy)
    finally:
        partial.unlink(missing_ok=True)


def _same(path: Path, other: Path) -> bool:
    return path == other or (other.exists() and path.samefile(other))
