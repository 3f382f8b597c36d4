"""The models that AI2 published, by name: downloaded once, then read from the cache directory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relmo.errors import ConfigError, FormatError
from relmo.files import cache_directory as cache_directory
from relmo.formats.download import download

BASE_URLS = (
    "https://allennlp.s3.amazonaws.com/models/elmo/",
    "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo/",  # older address of the same files
)


@dataclass(frozen=True)
class PublishedModel:
    """A published model; ``bytes`` and ``sha256`` are those of its weights file."""

    name: str
    folder: str
    n_parameters: int
    trained_on: str
    licence: str = "Apache-2.0"
    bytes: int | None = None
    sha256: str | None = None

    @property
    def approximate_bytes(self) -> int:
        """Size of the weights; estimated from the parameters (float32) if it is not known."""
        return 4 * self.n_parameters if self.bytes is None else self.bytes


_MODELS = (
    PublishedModel(
        "small",
        "2x1024_128_2048cnn_1xhighway",
        n_parameters=13_593_296,
        trained_on="1 billion words",
        bytes=54_402_456,
        sha256="747ba97abce8a5f446558369e10bb0f7931437a46867476fdd156f5d7f576229",
    ),
    PublishedModel(
        "medium",
        "2x2048_256_2048cnn_1xhighway",
        n_parameters=28_027_728,
        trained_on="1 billion words",
    ),
    PublishedModel(
        "original",
        "2x4096_512_2048cnn_2xhighway",
        n_parameters=93_600_848,
        trained_on="1 billion words",
    ),
    PublishedModel(
        "original-5.5b",
        "2x4096_512_2048cnn_2xhighway_5.5B",
        n_parameters=93_600_848,
        trained_on="5.5 billion words (Wikipedia + news)",
    ),
)
PUBLISHED = {model.name: model for model in _MODELS}


def is_cached(model: str | PublishedModel) -> bool:
    """Whether both files of the model are cached, so that ``fetch`` needs no network."""
    return all(path.is_file() for path in _paths(_look_up(model)))


def fetch(
    model: str | PublishedModel, *, base_urls: Sequence[str] = BASE_URLS
) -> tuple[Path, Path]:
    """Return the model's options.json and weights.hdf5 in the cache, downloaded if missing."""
    model = _look_up(model)
    options, weights = _paths(model)
    if is_cached(model):
        return options, weights
    stem = f"{model.folder}/elmo_{model.folder}"
    by_hand = (
        f"or download {base_urls[0]}{stem}_options.json and _weights.hdf5 by hand and give the "
        "weights as the model, with their options."
    )
    if os.environ.get("RELMO_OFFLINE", "") not in ("", "0"):
        raise FormatError(
            f"model {model.name!r} is not in {options.parent}, and RELMO_OFFLINE forbids "
            f"downloading it: unset RELMO_OFFLINE, {by_hand}",
            settings=["model", "options"],
        )
    try:
        download([f"{base}{stem}_options.json" for base in base_urls], options)
        download(
            [f"{base}{stem}_weights.hdf5" for base in base_urls],
            weights,
            n_bytes=model.bytes,
            sha256=model.sha256,
        )
    except FormatError as error:
        raise FormatError(
            f"model {model.name!r} could not be downloaded: {error}. Check the connection and try "
            f"again (the download resumes), {by_hand}",
            settings=["model", "options"],
        ) from error
    return options, weights


def _look_up(model: str | PublishedModel) -> PublishedModel:
    if isinstance(model, PublishedModel):
        return model
    if model not in PUBLISHED:
        raise ConfigError(f"no published model {model!r}: expected one of {', '.join(PUBLISHED)}")
    return PUBLISHED[model]


def _paths(model: PublishedModel) -> tuple[Path, Path]:
    directory = cache_directory() / model.name
    return directory / "options.json", directory / "weights.hdf5"
