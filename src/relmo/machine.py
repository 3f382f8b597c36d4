"""The machine that something was measured on: system, processor, instruction sets, versions.

Linux, macOS and Windows are read through what the system itself offers. What cannot be found out is
left empty; a description of the machine never stops the work that it describes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

# Those that change how fast or with which rounding relmo computes, and each system's names for
# them: flags of /proc/cpuinfo, names of sysctl, numbers of Windows' IsProcessorFeaturePresent.
INSTRUCTION_SETS: dict[str, tuple[str | int, ...]] = {
    "sse4_2": ("sse4_2", "hw.optional.sse4_2", 38),
    "avx": ("avx", "hw.optional.avx1_0", 39),
    "f16c": ("f16c", "hw.optional.f16c"),
    "fma": ("fma", "hw.optional.fma"),
    "avx2": ("avx2", "hw.optional.avx2_0", 40),
    "avx_vnni": ("avx_vnni",),
    "avx512f": ("avx512f", "hw.optional.avx512f", 41),
    "avx512_vnni": ("avx512_vnni", "hw.optional.avx512vnni"),
    "avx512_bf16": ("avx512_bf16", "hw.optional.avx512bf16"),
    "amx_int8": ("amx_int8",),
    "amx_bf16": ("amx_bf16",),
    "neon": ("asimd", "neon", "hw.optional.arm.AdvSIMD", "hw.optional.neon", 19),
    "dotprod": ("asimddp", "hw.optional.arm.FEAT_DotProd", 43),
    "i8mm": ("i8mm", "hw.optional.arm.FEAT_I8MM"),
    "bf16": ("bf16", "hw.optional.arm.FEAT_BF16"),
    "sve": ("sve",),
}
# How pydantic checks a value that was read from a file.
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
PACKAGES = ("torch", "numpy")


@dataclass(frozen=True)
class Machine:
    """What something runs on.

    Attributes:
        system: operating system and its version.
        architecture: such as "x86_64" or "arm64".
        processor: the model name, such as "AMD EPYC 9R14"; empty if unknown.
        instruction_sets: those of `INSTRUCTION_SETS` that the processor has.
        n_cores: logical cores that this process may use.
        versions: of Python and of the packages that compute.
    """

    system: str
    architecture: str
    processor: str
    instruction_sets: tuple[str, ...]
    n_cores: int
    versions: dict[str, str]

    __pydantic_config__ = STRICT

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON has them."""
        return {**asdict(self), "instruction_sets": list(self.instruction_sets)}


def describe_machine() -> Machine:
    """Read what this process runs on.

    >>> describe_machine().n_cores > 0
    True
    """
    processor, instruction_sets = _read_processor()
    return Machine(
        system=platform.platform(),
        architecture=platform.machine(),
        processor=processor,
        instruction_sets=instruction_sets,
        n_cores=_count_cores(),
        versions=_read_versions(),
    )


def _read_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)  # without importing it
        except metadata.PackageNotFoundError:
            continue
    return versions


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # fewer than the machine has, under taskset or Slurm
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_processor() -> tuple[str, tuple[str, ...]]:
    try:
        if sys.platform == "win32":
            return _read_windows()
        if sys.platform == "darwin":
            return parse_sysctl(_run_sysctl())
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except (OSError, subprocess.SubprocessError):
        return platform.processor(), ()


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """Find name and instruction sets of the first processor in Linux' /proc/cpuinfo."""
    values = _pairs(text.split("\n\n")[0])
    name = values.get("model name") or values.get("cpu") or platform.processor()
    return name, _known((values.get("flags") or values.get("Features") or "").split())


def parse_sysctl(text: str) -> tuple[str, tuple[str, ...]]:
    """Find name and instruction sets in what macOS' `sysctl` prints."""
    values = _pairs(text)
    name = values.get("machdep.cpu.brand_string") or platform.processor()
    return name, _known(key for key, value in values.items() if value == "1")


def _run_sysctl() -> str:
    command = ["/usr/sbin/sysctl", "machdep.cpu.brand_string", "hw.optional"]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout


def _pairs(text: str) -> dict[str, str]:
    """The values of lines such as "key : value", the first of each key."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            values.setdefault(key.strip(), value.strip())
    return values


def _known(found: Iterable[str]) -> tuple[str, ...]:
    names = frozenset(found)
    return tuple(ours for ours, theirs in INSTRUCTION_SETS.items() if names.intersection(theirs))


def parse_features(is_present: Callable[[int], int]) -> tuple[str, ...]:
    """Ask for the instruction sets by their numbers in Windows."""
    return tuple(
        ours
        for ours, theirs in INSTRUCTION_SETS.items()
        if any(isinstance(number, int) and is_present(number) for number in theirs)
    )


if sys.platform == "win32":

    def _read_windows() -> tuple[str, tuple[str, ...]]:
        import ctypes
        import winreg

        place = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:
            name, _ = winreg.QueryValueEx(key, "ProcessorNameString")
        return str(name).strip(), parse_features(ctypes.windll.kernel32.IsProcessorFeaturePresent)
