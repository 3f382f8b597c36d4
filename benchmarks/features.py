"""What the store of features costs and brings: filling beside computing, opening, and reading.

    python benchmarks/features.py                            en, on text that Python brings
    python benchmarks/features.py -m MODEL --text FILE       one tokenised sentence per line
    python benchmarks/features.py --json

Machines are noisy: only the ratios within a run count. The files were written a moment before, so
they are read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import random
import tempfile
import time
from pathlib import Path

import relmo
from relmo.features.layers import Layers
from relmo.features.live import LiveFeatures
from relmo.features.store import FeatureStore, StoredFeatures

ROUNDS = 3


class TimedFeatures(LiveFeatures):
    """All layers of a model, with the time that computing them takes."""

    n_tokens, seconds = 0, 0.0

    def batch(self, sentences: list[list[str]], *, boundaries: bool = False) -> Layers:
        """As `Features` has it."""
        start = time.perf_counter()
        layers = super().batch(sentences, boundaries=boundaries)
        self.seconds += time.perf_counter() - start
        self.n_tokens += sum(map(len, sentences))
        return layers


def read_text(path: Path | None) -> list[list[str]]:
    text = "\n".join(pydoc_data.topics.topics.values()) if path is None else path.read_text()
    sentences = (line.split() for line in text.splitlines())
    return [sentence for sentence in sentences if 0 < len(sentence) <= 100]


def read_rate(stored: StoredFeatures, sentences: list[list[str]], size: int, like: bool) -> float:
    """Tokens per second of batches of some sentences, of like lengths or of any."""
    order = random.Random(0).sample(sentences, len(sentences))
    if like:
        order.sort(key=len)
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    random.Random(1).shuffle(batches)
    best = 0.0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for batch in batches:
            stored.batch(batch)
        best = max(best, sum(map(len, sentences)) / (time.perf_counter() - start))
    return best


def measure(model: str, sentences: list[list[str]]) -> dict[str, float]:
    live = TimedFeatures(relmo.load(model), model)
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(folder)
        start = time.perf_counter()
        stored = store.open(live, sentences)
        fill = time.perf_counter() - start
        found = {
            "tokens": stored.n_tokens,
            "bytes_per_token": sum(p.stat().st_size for p in stored.folder.iterdir())
            / stored.n_tokens,
            "computed_per_s": live.n_tokens / live.seconds,
            "filled_per_s": live.n_tokens / fill,
            "fill_overhead_percent": 100 * (fill / live.seconds - 1),
        }
        for name in ("second_open_s", "third_open_s"):
            start = time.perf_counter()
            stored = store.open(live, sentences)
            found[name] = time.perf_counter() - start
        for size in (32, 128):
            for like in (True, False):
                name = f"read_per_s, {size} sentences of {'like' if like else 'any'} length"
                found[name] = read_rate(stored, sentences, size, like)
        stored.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="en")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.model, read_text(arguments.text))
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<48} {value:>12,.2f}" if value < 100 else f"{name:<48} {value:>12,.0f}")


if __name__ == "__main__":
    main()
