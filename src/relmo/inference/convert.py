"""Convert models from one format to another."""

from __future__ import annotations

from pathlib import Path

from relmo.errors import ConfigError
from relmo.files import check_writable
from relmo.formats import WRITERS, native
from relmo.inference.model_source import ModelLike, read_contents


def convert(
    model: ModelLike, output: str | Path, *, to: str = "relmo", dtype: str = "float32"
) -> Path:
    """Convert a model to another format. HDF5 to relmo and back gives the same bits.

    Args:
        model: a name, a path or a loaded model.
        output: the directory to write; it must not exist, or be empty.
        to: "relmo", or "bilm-tf" for options JSON and HDF5 weights.
        dtype: type of the stored numbers: "float32", or "float16" in relmo's format.

    Returns:
        The directory.

    Example:
        >>> import relmo
        >>> relmo.convert("en", "smaller", dtype="float16").name
        'smaller'
        >>> relmo.load("smaller").embed("The cat sat .").shape
        (4, 512)
    """
    if to not in WRITERS:
        raise ConfigError(f"to is {to!r}; choose from {', '.join(WRITERS)}.", settings=["to"])
    if dtype not in native.DTYPES or (dtype == "float16" and to != "relmo"):
        raise ConfigError(
            f"dtype is {dtype!r}; choose float32 or, in relmo's format, float16.",
            settings=["dtype"],
        )
    directory = Path(output)
    check_writable(directory, directory=True)
    contents = read_contents(model)
    contents.build_bilm()  # fails before anything is written if the parts do not fit together
    if dtype == "float16":
        native.write(contents, directory, "float16")
    else:
        WRITERS[to](contents, directory)
    return directory
