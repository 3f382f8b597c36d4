"""Detect, read and write model files, of relmo and of earlier programs.

`detect` looks at the content, never at file names that a user chose. A new format is one file with
`recognizes` and `read` (and `write`), and one line in a table here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from relmo.errors import ConfigError, FormatError
from relmo.formats import bilm_tf, bundled, many_langs, native, published
from relmo.formats.contents import ModelContents
from relmo.formats.hdf5 import hdf5_names
from relmo.formats.model_files import (
    Files,
    ModelFiles,
    find_json,
    is_there,
    open_model_files,
    read_json,
)

__all__ = ["READERS", "WRITERS", "ModelContents", "detect", "read_model"]

READERS: Mapping[str, ModuleType] = {"relmo": native, "bilm-tf": bilm_tf, "many-langs": many_langs}
WRITERS: Mapping[str, Callable[[ModelContents, Path], None]] = {
    "relmo": native.write,
    "bilm-tf": bilm_tf.write,
}


def detect(source: ModelFiles) -> str:
    """Return the name of the format of these files."""
    for name, reader in READERS.items():
        if reader.recognizes(source):
            return name
    files = ", ".join(source.names()[:12]) or "nothing"
    raise FormatError(
        f"{source.where} is not a model that relmo knows; it holds: {files}. Expected relmo's ("
        "config.json with format_version, model.safetensors), options JSON beside HDF5 weights "
        "(bilm-tf, AllenNLP), or ELMoForManyLangs's (config.json, token_embedder.pkl, encoder.pkl)."
    )


def read_model(
    source: str | Path | None = None,
    *,
    options: str | Path | None = None,
    weights: str | Path | None = None,
) -> ModelContents:
    """Read a model: a directory, a zip archive, a model's name, or HDF5 weights.

    Args:
        source: path or name. A bundled name comes first: `./en` is a directory called `en`.
        options: the options.json of HDF5 weights; found beside them when it is the only one there.
        weights: HDF5 weights of bilm-tf or AllenNLP, the same as giving them as `source`.
    """
    if (source is None) == (weights is None):
        raise ConfigError("Give either a model's path or name, or weights= with their options=.")
    chosen = str(source if source is not None else weights)
    named = chosen in (*bundled.BUNDLED, *published.PUBLISHED)
    if named and options is not None and not is_there(Path(chosen)):
        raise ConfigError(
            f"The model {chosen!r} has its own options; an options file belongs to HDF5 weights. "
            "Leave it out, or give the weights that it belongs to.",
            settings=["options"],
        )
    if source in bundled.BUNDLED and options is None:
        chosen = str(bundled.BUNDLED[chosen].directory)
    elif chosen in published.PUBLISHED and options is None and not is_there(Path(chosen)):
        options, chosen = map(str, published.fetch(chosen))
    files = _open(Path(chosen), None if options is None else Path(options))
    contents: ModelContents = READERS[detect(files)].read(files)
    contents.check(files.where)
    return contents


def _refuse_run(path: Path) -> Path:
    """Return the path, unless it is a run directory, which holds a model."""
    if (path / "model" / "config.json").is_file() and not (path / "config.json").is_file():
        raise FormatError(
            f"{path} is the directory of a run, not a model. Did you mean {path / 'model'}?",
            settings=["model"],
        )
    return path


def _open(path: Path, options: Path | None) -> ModelFiles:
    if not is_there(path):
        raise FormatError(
            f"There is no model {str(path)!r}: no such directory or file, and no model of that "
            f"name ({', '.join((*bundled.BUNDLED, *published.PUBLISHED))}; see `relmo models`)."
        )
    if not path.is_file() or not hdf5_names(Files({str(path): path}, str(path))):
        if options is None:
            return open_model_files(_refuse_run(path))
        damaged_or_none = FormatError if path.is_file() else ConfigError
        raise damaged_or_none(f"{path} is not an HDF5 file, and options= belongs to HDF5 weights.")
    if options is None:
        beside = find_json(open_model_files(path.parent), "lstm", "char_cnn")
        if len(beside) != 1:
            raise FormatError(
                f"{path} needs its options: expected one such file beside it, found {len(beside)}. "
                "Name it with options=.",
                settings=["options"],
            )
        options = path.parent / next(iter(beside))
    if not is_there(options) or not options.is_file():
        raise FormatError(f"The options file {options} does not exist.")
    pair = Files({str(options): options, str(path): path}, "the given files")
    read_json(pair, str(options))  # `detect` would silently skip a damaged one
    return pair
