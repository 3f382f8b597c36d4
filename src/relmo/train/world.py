"""The processes that train together: one, or as many as `torchrun` started.

On CPUs they talk through gloo, on CUDA devices (untested) through NCCL. Threads are left alone:
torchrun gives each process one (OMP_NUM_THREADS=1) unless the user says otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from relmo.errors import ConfigError, TrainingError

# A dead process is noticed at once, as its connections close; these are for a machine that falls
# silent. At a barrier the others may be waiting for the first rank to prepare text or validate.
STEP_TIMEOUT = timedelta(minutes=30)
BARRIER_TIMEOUT = timedelta(days=2)
# DistributedDataParallel keeps gloo's threads; one that frees its last tensor while Python winds
# down aborts a process whose work is done, so they get time to do it before.
LAST_SECONDS = 0.3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """This process's place among those that train together; alone it needs no arguments."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    _patient: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes, validates and talks."""
        return self.rank == 0

    def sum(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def gather(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """All processes' tensors, of one shape, side by side in the order of ranks."""
        if self.size == 1:
            return tensor
        own = tensor.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own)
        return torch.cat(parts, dim)

    def union(self, rows: Tensor) -> Tensor:
        """The distinct values, sorted, of all processes' `rows`: (n,) int64, any n on each."""
        if self.size > 1:
            lengths = self.gather(torch.tensor([len(rows)]))
            padded = nn.functional.pad(rows, (0, int(lengths.max()) - len(rows)))
            real = torch.arange(len(padded)) < lengths[:, None]  # (size, n)
            rows = self.gather(padded[None])[real.to(rows.device)]
        distinct: Tensor = torch.unique(rows)
        return distinct

    def barrier(self) -> None:
        """Wait for all processes, however long the first one works by itself."""
        if self.size > 1:
            dist.barrier(group=self._patient)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over all processes in its backward pass."""
        if self.size == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)


@contextmanager
def join_world(device: str | None = None) -> Iterator[World]:
    """Meet the other processes that torchrun started; without it, be alone.

    Args:
        device: "cpu", "cuda" (each process its own) or "cuda:N"; None is CUDA where there is one.
    """
    rank, size, local_rank = _torchrun_place()
    chosen = _choose_device(device, local_rank)
    if size == 1:
        yield World(device=chosen)
        return
    backend = "gloo" if chosen.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
        yield World(rank, size, chosen, dist.new_group(backend="gloo", timeout=BARRIER_TIMEOUT))
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors, which name its source files
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            reason = str(error).partition("\n")[0].rpartition("gloo/")[2]
            raise TrainingError(
                f"Process {rank}: another process of this job ended, or cannot be reached "
                f"({reason}). See what it said, then resume the run.",
                settings=["resume"],
            ) from error
        raise
    else:
        time.sleep(LAST_SECONDS)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _torchrun_place() -> tuple[int, int, int]:
    """Rank, size and rank on this machine, from the environment."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if not {"RANK", "WORLD_SIZE"} & set(os.environ):
        return 0, 1, 0
    try:
        rank, size, local_rank, *_ = [os.environ[name] for name in names]
        return int(rank), int(size), int(local_rank)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"RANK or WORLD_SIZE is set, so {', '.join(names)} are needed ({error!r}). Start "
            "several processes with torchrun, which sets them all, or unset them to train in one."
        ) from None


def _choose_device(name: str | None, local_rank: int) -> torch.device:
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cuda" or (name is None and n_devices):
        name = f"cuda:{local_rank}"
    name = name or "cpu"
    kind, _, index = name.partition(":")
    if name != "cpu" and (kind != "cuda" or not index.isdecimal() or int(index) >= n_devices):
        found = f"There is no device {name!r}: this machine has the CPU and {n_devices} for CUDA."
        raise ConfigError(f"{found} Name another, or start fewer processes.")
    return torch.device(name)
