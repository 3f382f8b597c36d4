"""Write tests/data/VERSION: small files of every kind that the relmo on the path writes.

    git worktree add /tmp/old v0.1.0
    PYTHONPATH=/tmp/old/src python scripts/make_artefacts.py tests/data/0.1

Later versions must read them (tests/test_old_versions.py). Run this once per version that changes a
format, with the code of that version, into a new directory; never write over an old one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import relmo

SIZES = (
    "model.encoder.character_dim=2",
    "model.encoder.filters=[[1, 4], [2, 4]]",
    "model.lstm.cell_dim=6",
    "model.lstm.projection_dim=4",
    "data.batch_tokens=64",
    "data.n_streams=4",
    "data.n_steps=8",
    "data.valid_share=0.1",
    "objective.n_samples=16",
    "objective.dropout=0.1",
    "train.learning_rate=0.01",
    "train.warmup=5",
    "train.validate_every=10",
)
MAX_TOKENS = 4000  # about 65 steps
ROWS_BEFORE_THE_KILL = 3  # of metrics.jsonl, which gets one every ten steps
ENDINGS = (".hdf5", ".safetensors", ".npz", ".parquet", ".jsonl")
SENTENCES = ("the old cat sees a bird .", "Nobody's naïve zebra ran , twice !")
QUERY, PLACE = "a red dog finds the house .", 2
HOME = "/home/somebody/relmo"  # in place of the directory in which this ran


def write_text(path: Path) -> None:
    """Sixty sentences of a small grammar, and the first six of them again in few.txt."""
    rng = random.Random(13)
    nouns = ("cat", "dog", "bird", "house", "river", "child")
    with path.open("w", encoding="utf-8") as file:
        for _ in range(60):
            first, second = (
                f"{rng.choice(('the', 'a'))} {rng.choice(('old', 'red', 'small'))} {noun}"
                for noun in rng.sample(nouns, 2)
            )
            file.write(f"{first} {rng.choice(('sees', 'finds', 'likes'))} {second} .\n")
    few = path.read_text(encoding="utf-8").splitlines(keepends=True)[:6]
    path.with_name("few.txt").write_text("".join(few), encoding="utf-8")


def run(*arguments: str | Path) -> str:
    """Run relmo in this directory: what it prints."""
    command = [sys.executable, "-m", "relmo", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def start(name: str, layout: str) -> list[str]:
    """The command that begins a run."""
    changes = [*SIZES, f"data.layout={layout}", "train.checkpoint_minutes=1e-9"]
    return [
        *(sys.executable, "-m", "relmo", "pretrain", "text.txt", "-o", name, "--lines"),
        *("--preset", "tiny", "--max-tokens", str(MAX_TOKENS), "--cache", "cache"),
        *("--threads", "1"),
        *(part for change in changes for part in ("--set", change)),
    ]


def stop_in_the_middle(name: str, layout: str) -> None:
    """Begin a run, which saves after every step, and kill it."""
    with subprocess.Popen(start(name, layout), stderr=subprocess.DEVNULL) as process:
        metrics = Path(name, "metrics.jsonl")
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < ROWS_BEFORE_THE_KILL:
            if process.poll() is not None:
                sys.exit(f"{name} ended before it could be killed")
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    if Path(name, "model").exists():
        sys.exit(f"{name} had come to its end: try again")
    for left in (Path(name, ".lock"), *Path(name, "checkpoints").glob(".*")):
        left.unlink()


def resume(name: str) -> dict[str, object]:
    """Let a copy of a run come to its end: what it came to."""
    shutil.copytree(name, "resumed")
    run(
        *("pretrain", "text.txt", "-o", "resumed", "--resume", "--max-tokens", str(MAX_TOKENS)),
        *("--cache", "cache", "--threads", "1"),
    )
    rows = [json.loads(row) for row in Path("resumed", "metrics.jsonl").read_text().splitlines()]
    rows_before = Path(name, "metrics.jsonl").read_text().count("\n")
    perplexity = json.loads(run("perplexity", "text.txt", "-m", "resumed/model", "--json"))
    losses = {str(row["step"]): row["loss"] for row in rows}
    shutil.rmtree("resumed")
    return {
        "rows_before": rows_before,
        "step": rows[-1]["step"],
        "tokens": rows[-1]["tokens"],
        "losses": losses,
        "perplexity": perplexity,
    }


def search(model: relmo.Model, index: relmo.VectorIndex) -> list[list[object]]:
    """Every word of the index with its score, the nearest first."""
    query = model.embed(QUERY)[PLACE]
    (hits,) = index.search(query[None], k=len(index))
    return [[list(hit.tokens), hit.place, float(hit.score)] for hit in hits]


def hide_home(folder: Path, home: str) -> None:
    """Take out the one thing that belongs to the machine rather than to the version."""
    for path in folder.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        if path.name == "environment.json":
            values = json.loads(text)
            values["command"] = values["command"][values["command"].index("pretrain") :]
            values["command"] = f"relmo {values['command']}"
            text = json.dumps(values, indent=2) + "\n"
        path.write_text(text.replace(home, HOME), encoding="utf-8")


def main() -> None:
    """Write everything in a temporary directory, then move it to where it was asked for."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        write_text(Path("text.txt"))
        expected: dict[str, object] = {"version": relmo.__version__, "max_tokens": MAX_TOKENS}
        subprocess.run(start("trained", "segments"), check=True)
        Path("trained", "model").rename("model")
        shutil.rmtree("trained")
        for layout in ("segments", "stream"):
            stop_in_the_middle(f"run-{layout}", layout)
            expected[f"run-{layout}"] = resume(f"run-{layout}")
        Path("sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
        for ending in ENDINGS:
            run("embed", "few.txt", "-m", "model", "-o", f"vectors{ending}", "--layers", "all")
        run("index", "build", "few.txt", "-m", "model", "-o", "index", "--lines")
        model = relmo.load("model")
        expected["sentences"] = SENTENCES
        expected["layers"] = [v.tolist() for v in model.embed(SENTENCES, layers="all")]
        expected["query"], expected["place"] = QUERY, PLACE
        expected["hits"] = search(model, relmo.VectorIndex("index"))
        expected["perplexity"] = json.loads(
            run("perplexity", "sentences.txt", "-m", "model", "--json")
        )
        Path("expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")
        shutil.rmtree("cache")
        hide_home(Path(), str(Path(home).absolute()))
        target.mkdir(parents=True)
        for path in Path().iterdir():
            shutil.move(path, target / path.name)
        os.chdir(target)


if __name__ == "__main__":
    main()
