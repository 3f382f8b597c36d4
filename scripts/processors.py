"""Run the tests of numbers with the instructions of other processors.

    make processors
    python scripts/processors.py --only "no AVX" -- tests/model -x

Libraries are told by their environment variables to forget what this processor can do, so that they
add in another order. A test that fails here has a tolerance that one machine gave
(tests/tolerance.py says how to derive one).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMERIC = (
    *("tests/model", "tests/vectors", "tests/formats", "tests/text", "tests/analysis"),
    *("tests/train", "tests/pretrain", "tests/inference", "tests/features", "tests/demo"),
    *("tests/test_substitutes.py", "tests/test_parity.py", "tests/test_reference.py"),
    "tests/test_old_versions.py",
)
# ATEN: PyTorch's own loops. MKL: its matrix products; MKL_CBWR is what processors other than
# Intel's listen to. ONEDNN: int8. OPENBLAS: NumPy's matrix products.
NO_AVX = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx512",
    "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    "MKL_CBWR": "AVX512",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    "OPENBLAS_CORETYPE": "SkylakeX",
}
NO_KERNEL = {"RELMO_KERNEL": "off"}
IMITATIONS = {
    "no AVX": NO_AVX,
    "no AVX, no kernel": NO_AVX | NO_KERNEL,
    "AVX2": AVX2,
    "AVX2, no kernel": AVX2 | NO_KERNEL,
    "AVX2, AMD Zen": AVX2 | {"OPENBLAS_CORETYPE": "Zen", "MKL_CBWR": "COMPATIBLE"},
    "AVX-512": AVX512,
    "AVX-512, no kernel": AVX512 | NO_KERNEL,
}


def main() -> None:
    """Run pytest once per imitation, and say which of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest-xdist")
    parser.add_argument("--only", action="append", choices=list(IMITATIONS), help="repeatable")
    parser.add_argument("tests", nargs="*", help="for pytest, in place of the tests of numbers")
    given = parser.parse_args()
    failed = []
    for name in given.only or IMITATIONS:
        begin = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-n", str(given.workers), "--dist", "worksteal"]
        command += ["-m", "not slow", "--durations", "0", *(given.tests or NUMERIC)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | IMITATIONS[name], capture_output=True, text=True
        )
        lines = done.stdout.splitlines()
        print(f"{name}: {lines[-1]} ({time.monotonic() - begin:.0f} s)", flush=True)
        if done.returncode:
            failed.append(name)
            print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))))
            print(done.stderr)
    if failed:
        sys.exit(f"Tests failed on: {', '.join(failed)}")


if __name__ == "__main__":
    main()
