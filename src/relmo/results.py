"""What was measured: one schema for every probe, comparison and analysis.

A file (`results.json`) holds one `Result`; a report reads a directory of them. Tables in the
documentation are rendered from these files (`render_table`) and from nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from relmo import __version__
from relmo.errors import ConfigError, DataError, FormatError
from relmo.files import written_atomically
from relmo.machine import STRICT, Machine, describe_machine

FORMAT_VERSION = 1
MAX_RESULTS_BYTES = 8 << 20
N_RESAMPLES = 10_000
Setting = str | int | float | bool | None


@dataclass(frozen=True)
class Interval:
    """Bounds around a value, and what they mean: "95 % bootstrap", "range over 3 seeds"."""

    low: float
    high: float
    kind: str

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ConfigError(
                f"An interval goes from a number to one that is not smaller, found {self.low} to "
                f"{self.high}."
            )

    def scaled(self, factor: float) -> Interval:
        """The same interval in another unit, such as per cent for shares (100)."""
        return replace(self, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True)
class Value:
    """One number that was measured.

    Attributes:
        name: what it is, such as "accuracy" or "perplexity".
        value: a finite number.
        unit: such as "%", "words/s", "s"; empty for plain numbers.
        row: what it is of, such as "layer 1" or "glove": a row of a table.
        group: the part of the data, such as "dev" or "test".
        interval: how sure the number is.
    """

    name: str
    value: float
    unit: str = ""
    row: str | None = None
    group: str | None = None
    interval: Interval | None = None

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("A value needs a name, such as 'accuracy'.")
        if not math.isfinite(self.value):
            raise ConfigError(f"{self.name} must be a finite number, found {self.value}.")

    def as_dict(self) -> dict[str, Any]:
        """The fields, as results.json has them; what a value does not have is left out."""
        return {k: v for k, v in asdict(self).items() if v is not None and (k, v) != ("unit", "")}


@dataclass(frozen=True)
class DataFile:
    """A file that was read: its name without folders, SHA-256 of its bytes, and their number."""

    name: str
    sha256: str
    n_bytes: int

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Result:
    """Values that were measured together, and all that is needed to measure them again.

    Attributes:
        what: what was measured, such as "part-of-speech probe".
        values: the numbers; no two share name, row and group.
        command: the command line.
        relmo: relmo's version.
        machine: what it ran on.
        started: when, in ISO 8601 with the time zone.
        seconds: how long it took.
        seeds: of the random numbers, one per repetition.
        models: fingerprints of the weights, by the models' names.
        data: the files that were read.
        settings: those that are not on the command line, or are worth naming.
    """

    what: str
    values: tuple[Value, ...]
    command: str
    relmo: str
    machine: Machine
    started: str
    seconds: float
    seeds: tuple[int, ...] = ()
    models: dict[str, str] = field(default_factory=dict)
    data: tuple[DataFile, ...] = ()
    settings: dict[str, Setting] = field(default_factory=dict)

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        places = [(value.row, value.group, value.name) for value in self.values]
        if len(set(places)) < len(places):
            row, group, name = next(place for place in places if places.count(place) > 1)
            raise ConfigError(
                f"{self.what}: {name} (row {row!r}, group {group!r}) is there more than once. "
                "Give each value a name, row or group of its own."
            )

    def as_dict(self) -> dict[str, Any]:
        """The fields, as results.json has them."""
        return {
            "format_version": FORMAT_VERSION,
            **asdict(self),
            "values": [value.as_dict() for value in self.values],
            "machine": self.machine.as_dict(),
            "seeds": list(self.seeds),
            "data": [asdict(file) for file in self.data],
        }


def build_result(
    what: str,
    values: Iterable[Value],
    *,
    seconds: float,
    seeds: Iterable[int] = (),
    models: Mapping[str, str] | None = None,
    data: Iterable[DataFile] = (),
    settings: Mapping[str, Setting] | None = None,
) -> Result:
    """Put together what was measured just now, by this process, on this machine.

    Example:
        >>> from relmo.results import accuracy, build_result
        >>> result = build_result("toy", [accuracy(9, 10, group="test")], seconds=0.5, seeds=[1])
        >>> result.values[0].value
        90.0
    """
    started = datetime.now(timezone.utc) - timedelta(seconds=seconds)
    return Result(
        what=what,
        values=tuple(values),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        relmo=__version__,
        machine=describe_machine(),
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        seeds=tuple(seeds),
        models=dict(models or {}),
        data=tuple(data),
        settings=dict(settings or {}),
    )


# ---- files --------------------------------------------------------------------------------------


def write_results(result: Result, path: str | Path) -> None:
    """Write results.json, in full or not at all.

    Example:
        >>> from relmo.results import Value, build_result, read_results, write_results
        >>> result = build_result("speed", [Value("rate", 900.0, "words/s")], seconds=2.0)
        >>> write_results(result, "results.json")
        >>> read_results("results.json") == result
        True
    """
    text = json.dumps(result.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    with written_atomically(Path(path)) as written:
        # A command line may hold bytes that are no text.
        written.write_bytes((text + "\n").encode("utf-8", errors="replace"))


def read_results(path: str | Path) -> Result:
    """Read and check results.json.

    Raises:
        FormatError: the file is missing, too large, damaged, or of another format.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import from_json

    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_RESULTS_BYTES + 1)
    except OSError as error:
        raise FormatError(f"Cannot read {path}: {error.strerror or error}.") from None
    if len(content) > MAX_RESULTS_BYTES:
        raise FormatError(
            f"{path} is larger than {MAX_RESULTS_BYTES >> 20} MB: these are not results of relmo."
        )
    try:
        fields = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise FormatError(f"{path} is not JSON ({error}). Measure again.") from None
    version = fields.pop("format_version", None) if isinstance(fields, dict) else None
    if type(version) is not int or version < 1:
        raise FormatError(f"{path} has no format_version: these are not results of relmo.")
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{path} has format_version {version}, and relmo {__version__} reads up to "
            f"{FORMAT_VERSION}. Install a newer relmo."
        )
    try:
        return TypeAdapter(Result).validate_json(json.dumps(fields))
    except ConfigError as error:
        raise FormatError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise FormatError(f"{path}: {place}: {first['msg']}. Measure again.") from None


def data_identity(paths: Iterable[str | Path]) -> tuple[DataFile, ...]:
    """Name files by their content, so that others can tell whether theirs are the same."""
    return tuple(_identify(Path(path)) for path in paths)


def _identify(path: Path) -> DataFile:
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                n_bytes += len(block)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None
    return DataFile(path.name, digest.hexdigest(), n_bytes)


# ---- intervals ----------------------------------------------------------------------------------


def bootstrap_interval(
    values: ArrayLike, *, seed: int = 0, level: float = 0.95, n_resamples: int = N_RESAMPLES
) -> Interval:
    """The percentile bootstrap interval of a mean.

    Args:
        values: one number per item, such as per sentence or per seed.
        seed: of the resampling; the same seed gives the same interval.
        level: share of the resampled means that lie inside.
        n_resamples: how often the items are drawn anew, with replacement.
    """
    items = np.asarray(values, dtype=np.float64)
    if items.ndim != 1 or not items.size or not np.isfinite(items).all():
        raise ConfigError("A bootstrap needs one or more finite numbers in one dimension.")
    if n_resamples < 1:
        raise ConfigError(f"A bootstrap needs one or more resamples, found {n_resamples}.")
    _check_level(level)
    random = np.random.default_rng(seed)
    n_rows = max(1, (1 << 22) // items.size)  # at a time: bounds the memory
    means: list[np.ndarray[Any, np.dtype[np.float64]]] = []
    for start in range(0, n_resamples, n_rows):
        drawn = random.integers(items.size, size=(min(n_rows, n_resamples - start), items.size))
        means.append(items[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), f"{level * 100:g} % bootstrap")


def binomial_interval(n_right: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share, 0 to 1.

    Example:
        >>> from relmo.results import binomial_interval
        >>> interval = binomial_interval(90, 100)
        >>> round(interval.low, 3), round(interval.high, 3)
        (0.826, 0.945)
    """
    if not 0 <= n_right <= n or n < 1:
        raise ConfigError(f"An accuracy needs 0 to n right of n > 0, found {n_right} of {n}.")
    _check_level(level)
    z, share = NormalDist().inv_cdf((1 + level) / 2), n_right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Rounding must not put the share itself outside.
    low, high = min(max(0.0, centre - half), share), max(min(1.0, centre + half), share)
    return Interval(low, high, f"{level * 100:g} % Wilson")


def accuracy(n_right: int, n: int, *, row: str | None = None, group: str | None = None) -> Value:
    """An accuracy in per cent with its 95 % interval."""
    interval = binomial_interval(n_right, n).scaled(100)
    return Value("accuracy", 100 * n_right / n, "%", row, group, interval)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"The level of an interval lies between 0 and 1, found {level}.")


# ---- tables -------------------------------------------------------------------------------------


def render_table(results: Result | Sequence[Result], *, intervals: bool = True) -> str:
    """A Markdown table: one line per row of the values, one column per name and group.

    With several results, `what` is a column too. Numbers of a column have as many decimals as show
    three digits of the largest; whole numbers have none.

    Example:
        >>> from relmo.results import Value, build_result, render_table
        >>> values = [Value("loss", 0.5, row="layer 1"), Value("loss", 0.25, row="layer 2")]
        >>> print(render_table(build_result("toy", values, seconds=1.0)))
        |  | loss |
        | --- | ---: |
        | layer 1 | 0.500 |
        | layer 2 | 0.250 |
        <BLANKLINE>
    """
    several = [results] if isinstance(results, Result) else list(results)
    columns: dict[tuple[str, str | None, str], list[float]] = {}
    lines: dict[tuple[int, str], dict[tuple[str, str | None, str], Value]] = {}
    for number, result in enumerate(several):
        for value in result.values:
            column = (value.name, value.group, value.unit)
            columns.setdefault(column, []).append(value.value)
            lines.setdefault((number, value.row or ""), {})[column] = value
    formats = {column: _number_format(numbers) for column, numbers in columns.items()}
    with_what, with_row = len(several) > 1, any(row for _, row in lines) or len(several) < 2
    labels = ["what"] * with_what + [""] * with_row
    table = [[*labels, *map(_heading, columns)]]
    table.append(["---"] * len(labels) + ["---:"] * len(columns))
    for (number, row), found in lines.items():
        name = [several[number].what] * with_what + [row if with_what else row or several[0].what]
        cells = [_cell(found.get(column), formats[column], intervals) for column in columns]
        table.append([*name[: len(labels)], *cells])
    return "".join(f"| {' | '.join(map(_escape, line))} |\n" for line in table)


def _heading(column: tuple[str, str | None, str]) -> str:
    name, group, unit = column
    return name + (f", {group}" if group else "") + (f" ({unit})" if unit else "")


def _number_format(numbers: Sequence[float]) -> str:
    """How the numbers of a column are written, as a format."""
    largest = max(map(abs, numbers))
    if largest and not 1e-4 <= largest < 1e12:
        return ".3g"
    if all(float(number).is_integer() for number in numbers):
        return ",.0f"
    return f",.{max(1, 2 - math.floor(math.log10(largest)))}f"


def _cell(value: Value | None, number: str, intervals: bool) -> str:
    if value is None:
        return ""
    text = f"{value.value:{number}}"
    if intervals and (interval := value.interval) is not None:
        text += f" ({interval.low:{number}} to {interval.high:{number}})"
    return text


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
