"""Is a wheel that was just built and installed good? Run by cibuildwheel on every platform."""

import platform
import sys

import relmo
from relmo.model import kernels

print(f"relmo {relmo.__version__}, Python {platform.python_version()}: {kernels.description}")
# setup.py calls the kernel optional, so a wheel without it would be built without a complaint.
if kernels.loops is None and sys.platform != "win32":
    sys.exit("this wheel has no C kernel")
model = relmo.load("en")
(vectors,) = model.embed([["The", "bank", "raised", "its", "rates", "."]])
if vectors.shape != (6, model.config.output_dim):
    sys.exit(f"six tokens should give (6, {model.config.output_dim}), not {vectors.shape}")
