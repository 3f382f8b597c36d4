"""The published recipe and the modern one, on the same text, network and cores, for the same time.

    python benchmarks/recipes.py "novels/*.txt.gz" -o runs --minutes 20 --picture curves.svg

trains `runs/modern` and `runs/published`, unless they are there already, one after the other, and
prints their validation perplexity over time. The network is that of the preset `small`, the
vocabulary and the held-out text are the same.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does

from relmo.pretraining import pretrain
from relmo.pretraining.report import compare_curves
from relmo.train.log import read_metrics

RECIPES = {
    "modern": ["train.validate_every=250"],
    "published": [
        *("data.layout=stream", "data.n_streams=128", "data.n_steps=20"),
        *("objective.n_samples=8192", "objective.loss_scale=20", "objective.unigram_bias=false"),
        *("train.optimizer=adagrad", "train.learning_rate=0.2", "train.clip_norm=10"),
        *("train.warmup=0", "train.decay=none", "train.validate_every=125"),
    ],
}


def report(runs: dict[str, Path], picture: Path | None) -> None:
    for name, metrics in runs.items():
        rows = read_metrics(metrics)
        seconds = rows[-1]["seconds"]
        print(f"{name}: {rows[-1]['tokens']:,} tokens, {rows[-1]['tokens'] / seconds:,.0f} words/s")
        print("  minutes  forward  backward  average")
        for row in rows:
            if "forward_perplexity" in row:
                ways = (row[f"{way}_perplexity"] for way in ("forward", "backward", "average"))
                print(f"  {row['seconds'] / 60:>7.1f}" + "".join(f"{p:>9.1f}" for p in ways))
    if picture is not None:
        compare_curves(runs, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only", choices=RECIPES, help="train and report this recipe alone")
    arguments = parser.parse_args()
    arguments.output.mkdir(exist_ok=True)
    runs = {}
    chosen = [arguments.only] if arguments.only else list(RECIPES)
    for name in chosen:
        settings, run = RECIPES[name], arguments.output / name
        if not (run / "model").exists():
            values = {"train.max_minutes": arguments.minutes}
            pretrain(run, arguments.text, values=values, settings=settings)
        runs[name] = run / "metrics.jsonl"
    report(runs, arguments.picture)


if __name__ == "__main__":
    main()
