"""The description of the machine, as each system gives it."""

import json
import subprocess
import sys

import pytest

from relmo import machine
from relmo.machine import describe_machine, parse_cpuinfo, parse_features, parse_sysctl

INTEL = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz
flags\t\t: fpu sse4_2 avx f16c fma avx2 avx512f avx512_vnni amx_int8

processor\t: 1
model name\t: another
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd crc32 asimddp sve i8mm bf16
CPU part\t: 0xd40
"""
APPLE = """\
machdep.cpu.brand_string: Apple M2
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SME: 0
hw.optional.arm.AdvSIMD: 1
hw.optional.avx2_0: 0
"""


def test_linux(monkeypatch):
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    name, found = parse_cpuinfo(INTEL)
    assert name == "Intel(R) Xeon(R) CPU @ 2.20GHz"
    assert found == ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512_vnni", "amx_int8")
    assert parse_cpuinfo(ARM) == ("", ("neon", "dotprod", "i8mm", "bf16", "sve"))
    assert parse_cpuinfo("") == ("", ())


def test_macos(monkeypatch):
    assert parse_sysctl(APPLE) == ("Apple M2", ("neon", "dotprod", "i8mm"))
    done = subprocess.CompletedProcess([], 0, stdout=APPLE)
    monkeypatch.setattr(machine.subprocess, "run", lambda *a, **k: done)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert describe_machine().processor == "Apple M2"


def test_windows():
    assert parse_features({39: 1, 40: 1, 41: 0}.get) == ("avx", "avx2")
    assert parse_features({19: 1, 43: 1}.get) == ("neon", "dotprod")


def test_a_system_that_tells_nothing(monkeypatch):
    def fails(*arguments, **options):
        raise subprocess.TimeoutExpired("sysctl", 10)

    monkeypatch.setattr(machine.platform, "processor", lambda: "i386")
    monkeypatch.setattr(machine.subprocess, "run", fails)
    monkeypatch.setattr(sys, "platform", "darwin")
    found = describe_machine()
    assert (found.processor, found.instruction_sets) == ("i386", ())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux'")
def test_this_machine():
    found = describe_machine()
    assert found.n_cores >= 1
    assert set(found.instruction_sets) <= set(machine.INSTRUCTION_SETS)
    assert {"python", "numpy", "torch"} <= set(found.versions)
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
