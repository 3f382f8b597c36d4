"""A tiny biLM trained while one looks on, on text that every Python has."""

from __future__ import annotations

import re
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from relmo.errors import DataError, RelmoWarning
from relmo.pretraining import pretrain
from relmo.train.interruption import Interrupted
from relmo.train.log import read_metrics

RECIPE = {  # of the preset tiny, with wider layers and more steps: better in half a minute
    "model.lstm.projection_dim": 64,
    "model.lstm.cell_dim": 128,
    "data.batch_tokens": 640,
    "data.lines": True,  # no sentence splitter, which is an extra
    "data.valid_share": 0.03,
    "data.min_count": 2,
    "train.validate_every": 10,
    "train.warmup": 20,
}


@dataclass(frozen=True)
class LiveRun:
    """What a short training came to.

    Attributes:
        curve: seconds, and perplexity on the text held out, first after a few steps.
        words_per_second: read in training, the time for validation included.
    """

    curve: list[tuple[float, float]]
    words_per_second: float


def read_manual() -> list[str]:
    """The paragraphs of Python's own manual, as `help()` knows it, each once, without code."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "This Python comes without its manual (pydoc_data), which the demo trains on. Leave "
            "the training out with --seconds 0."
        ) from None
    found = (" ".join(p.split()) for text in topics.values() for p in re.split(r"\n\s*\n", text))
    return list(dict.fromkeys(p for p in found if p.endswith((".", ":", "!", "?"))))


def train_live(paragraphs: list[str], seconds: float, seed: int) -> LiveRun:
    """Train for so long in a directory that is then removed.

    Raises:
        Interrupted: after SIGTERM or Ctrl-C.
    """
    with TemporaryDirectory(prefix="relmo-demo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", RelmoWarning)  # pictures need an extra, and none is wanted
        text, run, cache = (Path(folder, name) for name in ("manual.txt", "run", "cache"))
        text.write_text("\n".join(paragraphs), encoding="utf-8")
        values = {**RECIPE, "train.seed": seed, "train.max_minutes": seconds / 60}
        try:
            pretrain(run, [str(text)], preset="tiny", values=values, cache=cache)
        except Interrupted as stop:
            number = signal.Signals(stop.exit_code - 128)
            raise Interrupted("Stopped. Nothing is left behind.", number) from None
        rows = read_metrics(run / "metrics.jsonl")
    curve = [(r["seconds"], r["average_perplexity"]) for r in rows if "average_perplexity" in r]
    return LiveRun(curve, rows[-1]["tokens"] / rows[-1]["seconds"])
