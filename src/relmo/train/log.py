"""metrics.jsonl: what a run reports of itself, one JSON object per line.

`relmo.train.report` says which columns a row has; every row has a step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from relmo.errors import ConfigError, DataError
from relmo.files import written_atomically

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class MetricsLog:
    """Rows appended one by one, each on disk before the next; the same for TensorBoard if asked.

    Args:
        path: the file, new or that of a run to resume.
        step: the last step to keep; what came later never happened.
        tensorboard: write a directory `tensorboard` beside it.
    """

    def __init__(self, path: Path, *, step: int = 0, tensorboard: bool = False) -> None:
        rewind(path, step)
        self._board = _open_board(path.parent / "tensorboard", step) if tensorboard else None
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        self._file.write(json.dumps(dict(row)) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, row["step"])
            self._board.flush()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    r"""All rows; what was cut off in the middle of a last line is left out.

    Example:
        >>> from pathlib import Path
        >>> from relmo.train.log import read_metrics
        >>> _ = Path("metrics.jsonl").write_text('{"step": 10, "loss": 0.5}\n{"step": 2')
        >>> read_metrics("metrics.jsonl")
        [{'step': 10, 'loss': 0.5}]
    """
    try:
        *lines, _ = Path(path).read_text(encoding="utf-8").split("\n")  # a whole line ends in "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read {path}: {error}.") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({"step": int(row["step"]), **row})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number}: expected a JSON object with a step, found {line[:60]!r} "
                f"({error!r}). Remove the line."
            ) from None
    return rows


def rewind(path: Path, step: int) -> None:
    """Drop what came after `step`, so that the file reads as if that had never been."""
    if not path.exists():
        return
    rows = [row for row in read_metrics(path) if row["step"] <= step]
    with written_atomically(path) as written:
        written.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _open_board(directory: Path, step: int) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "TensorBoard needs the package tensorboard, which is not installed. Install it with: "
            "pip install 'relmo[tensorboard]'"
        ) from None
    return SummaryWriter(str(directory), purge_step=step + 1)
