"""Runs small enough for tests: text that every Python has, a model of few weights."""

import os
import subprocess
import sys
from itertools import islice
from pydoc_data.topics import topics

import torch

from relmo.train.checkpoint import read_checkpoint
from relmo.train.log import read_metrics

WORDS = " ".join(topics[name] for name in sorted(topics)).split()
TIMES = ("seconds", "words_per_s", "waiting")
SMALL = (
    "model.encoder.character_dim=4",
    "model.encoder.filters=[[1, 8], [2, 8]]",
    "model.lstm.cell_dim=12",
    "model.lstm.projection_dim=8",
    "model.tokenizer=whitespace",
    "data.lines=true",
    "data.batch_tokens=128",
    "data.n_streams=8",
    "data.n_steps=8",
    "objective.n_samples=32",
    "train.learning_rate=0.01",
    "train.warmup=0",
    "train.decay=none",
    "train.validate_every=20",
)


def write_lines(path, n_lines, *, n_words=12, skipped=0):
    """So many lines of so many words."""
    words = islice(WORDS, skipped, skipped + n_lines * n_words)
    rows = zip(*[words] * n_words, strict=True)
    path.write_text("".join(f"{' '.join(row)}\n" for row in rows), encoding="utf-8")
    return path


def settings(*more):
    """`--set` for everything that makes a run small, and for more."""
    return [part for value in (*SMALL, *more) for part in ("--set", value)]


def command(*arguments):
    return [sys.executable, "-m", "relmo", *map(str, arguments)]


def run_program(*arguments, **options):
    """Run relmo in a process of its own."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=120, **options
    )


def run_ranks(*arguments):
    """Start relmo on two ranks under torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--monitor-interval", "5"]  # or it ends a rank before that can say why it ends
    return subprocess.Popen(
        [*torchrun, "--nproc-per-node", "2", "-m", "relmo", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def last_checkpoint(run):
    return read_checkpoint(run / "checkpoints" / "last.safetensors")


def assert_same_checkpoint(run, other):
    """Bit for bit, but for times."""
    ours, theirs = map(last_checkpoint, (run, other))
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs.tensors[name]), name
    times = dict.fromkeys(("seconds", "row_seconds", "waited"))
    assert {**ours.values, **times} == {**theirs.values, **times}


def largest_difference(run, other):
    ours, theirs = (last_checkpoint(r).tensors for r in (run, other))
    assert ours.keys() == theirs.keys()
    return max(float((t - theirs[name]).abs().max()) for name, t in ours.items())


def rows_without_times(run):
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
