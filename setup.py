"""The one thing that pyproject.toml cannot say: an optional C extension.

Where there is no compiler, relmo installs without it and takes its PyTorch path.
"""

import sys

from setuptools import Extension, setup

# No -ffast-math: NaN must stay NaN. The two flags only let the compiler vectorise comparisons.
flags = [] if sys.platform == "win32" else ["-O3", "-fno-math-errno", "-fno-trapping-math"]

setup(
    ext_modules=[
        Extension(
            "relmo.model.kernels._cell",
            ["src/relmo/model/kernels/cell.c"],
            depends=["src/relmo/model/kernels/convolution.h"],
            extra_compile_args=flags,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
