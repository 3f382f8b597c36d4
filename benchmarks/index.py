"""How an index grows: building, searching, memory and recall, beside brute force in NumPy.

    python benchmarks/index.py                                 clustered random vectors
    python benchmarks/index.py --model DIR --text FILE ...     and words in their sentences
    python benchmarks/index.py --size 10000 --size 20000 --json

Machines are noisy: only the ratios within a run count. Each row is measured in processes of their
own, with the vectors read from a file, so that its peaks of memory are its own; "at rest" is what
Python and its packages take before. Queries are vectors that are not in the index; recall is as
`relmo index recall` tells it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from relmo.vectors.index import VectorIndex, write_index

SIZES = (100_000, 300_000, 1_000_000)
N_QUERIES = 100
K = 10
WORDS, WAYS = 5000, 24  # around which random vectors lie, and in which they differ
SENTENCE = 20  # tokens
CHUNK = 500 * SENTENCE  # vectors that are read or written at a time


def write_random(path: Path, n: int, dim: int) -> None:
    """Vectors around words as frequent as words are; words and contexts differ in some ways."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    centres, contexts = normal(WORDS, WAYS) @ normal(WAYS, dim), normal(WAYS, dim) / 2
    share = 1 / np.arange(1, WORDS + 1)
    with path.open("wb") as file:
        for _ in range(0, n, CHUNK):
            words = rng.choice(WORDS, CHUNK, p=share / share.sum())
            file.write(centres[words] + normal(CHUNK, WAYS) @ contexts + normal(CHUNK, dim) / 4)


def write_real(path: Path, n: int, model: str, texts: list[str]) -> int:
    """Vectors of words in their sentences, every sentence once; how many numbers one has."""
    import relmo
    from relmo.text.corpus import find_texts
    from relmo.text.sentences import read_sentences

    def distinct() -> Iterator[str]:
        seen = set()
        for sentence in (s for t in find_texts(texts) for s in read_sentences(t, lines=False)):
            if sentence not in seen:
                seen.add(sentence)
                yield sentence

    embedder, n_written = relmo.load(model), 0
    with path.open("wb") as file:
        for vectors in embedder.embed(distinct()):
            file.write(np.ascontiguousarray(vectors))
            n_written += len(vectors)
            if n_written >= n:
                return embedder.config.output_dim
    sys.exit(f"The text has {n_written:,} words, {n:,} are needed: give more --text.")


def read_chunks(path: Path, n: int, dim: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        for start in range(0, n, CHUNK):
            yield np.fromfile(file, np.float32, min(CHUNK, n - start) * dim).reshape(-1, dim)


def read_queries(path: Path, dim: int) -> np.ndarray:
    """The last vectors of the file, which no index holds."""
    with path.open("rb") as file:
        file.seek(-4 * dim * N_QUERIES, 2)
        return np.fromfile(file, np.float32).reshape(-1, dim)


def sentences(path: Path, n: int, dim: int) -> Iterator[tuple[list[str], np.ndarray]]:
    number = 0
    for chunk in read_chunks(path, n, dim):
        for start in range(0, len(chunk), SENTENCE):
            vectors = chunk[start : start + SENTENCE]
            yield [f"{number}-{place}" for place in range(len(vectors))], vectors
            number += 1


def measure_build(path: Path, n: int, dim: int, folder: Path, approximate: bool) -> dict:
    start = time.perf_counter()
    write_index(folder, sentences(path, n, dim), about={}, approximate=approximate)
    return {"seconds": time.perf_counter() - start}


def measure_search(path: Path, dim: int, folder: Path, approximate: bool) -> dict:
    index, queries = VectorIndex(folder), read_queries(path, dim)
    return time_search(lambda some: index.search(some, K, exact=not approximate), queries)


def measure_brute_force(path: Path, n: int, dim: int) -> dict:
    """All vectors in memory, and one product."""
    vectors = np.concatenate(list(read_chunks(path, n, dim)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def search(queries: np.ndarray) -> None:
        scores = queries @ vectors.T
        top = np.argpartition(-scores, K, axis=1)[:, :K]
        np.take_along_axis(top, np.argsort(-np.take_along_axis(scores, top, 1), axis=1), 1)

    return time_search(search, read_queries(path, dim))


def time_search(search, queries: np.ndarray) -> dict:
    search(queries[:1])  # pages are read, threads are there
    alone = [seconds(lambda q=q: search(q[None])) for q in queries[:20]]
    together = min(seconds(lambda: search(queries)) for _ in range(3))
    return {"one_ms": 1e3 * statistics.median(alone), "many_ms": 1e3 * together / len(queries)}


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_mb() -> int:
    status = Path("/proc/self/status").read_text()  # getrusage would tell the parent's peak
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def measure(what: str, path: Path, n: int, dim: int, folder: Path) -> dict:
    """One row's part, in this process."""
    verb, _, kind = what.partition(" ")
    at_rest, approximate = peak_mb(), kind == "approximate"
    if verb == "build":
        found = measure_build(path, n, dim, folder / kind, approximate)
    elif verb == "recall":
        found = {"recall": VectorIndex(folder / kind).recall(K)}
    elif kind == "NumPy":
        found = measure_brute_force(path, n, dim)
    else:
        found = measure_search(path, dim, folder / kind, approximate)
    return {**found, "peak_mb": peak_mb(), "at_rest_mb": at_rest}


def measure_apart(*arguments: object) -> dict:
    command = [sys.executable, __file__, "--measure", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def measure_size(path: Path, n: int, dim: int) -> dict:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        rows = {"NumPy": {"search": measure_apart("search NumPy", path, n, dim, folder)}}
        for kind in ("exact", "approximate"):
            rows[kind] = {
                verb: measure_apart(f"{verb} {kind}", path, n, dim, folder)
                for verb in ("build", "search", "recall")[: 3 if kind == "approximate" else 2]
            }
            files = Path(folder, kind).iterdir()
            rows[kind]["disk_mb"] = sum(f.stat().st_size for f in files) >> 20
    return rows


def report(name: str, dim: int, sizes: dict[int, dict]) -> None:
    print(f"\n{name}, {dim} numbers each; k = {K}")
    print(
        f"{'vectors':>10}  {'':<12}{'build s':>9}{'peak MB':>9}{'disk MB':>9}"
        f"{'ms, 1 query':>13}{'of 100':>9}{'peak MB':>9}{'recall@10':>11}{'x NumPy':>14}"
    )
    for n, rows in sizes.items():
        base = rows["NumPy"]["search"]
        for kind, row in rows.items():
            built, found = row.get("build"), row["search"]
            shown = f"{n:>10,}  {kind:<12}" if kind == "NumPy" else f"{'':>10}  {kind:<12}"
            shown += (
                f"{built['seconds']:>9.1f}{built['peak_mb']:>9,}{row['disk_mb']:>9,}"
                if built
                else " " * 27
            )
            shown += f"{found['one_ms']:>13.2f}{found['many_ms']:>9.2f}{found['peak_mb']:>9,}"
            recall = row.get("recall")
            shown += f"{recall['recall']:>11.4f}" if recall else f"{1:>11}"
            ratios = (base[key] / found[key] for key in ("one_ms", "many_ms"))
            print(shown + "".join(f"{ratio:>7.1f}" for ratio in ratios))
    print(f"at rest {base['at_rest_mb']:,} MB; x NumPy: its time over ours, 1 query and of 100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, action="append", help="vectors; several times")
    parser.add_argument("--dim", type=int, default=256, help="numbers of a random vector")
    parser.add_argument("--model", help="for real vectors, with --text")
    parser.add_argument("--text", nargs="+", help="files of prose")
    parser.add_argument("--folder", type=Path, help="where there is room; a temporary one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, path, n, dim, folder = arguments.measure
        print(json.dumps(measure(what, Path(path), int(n), int(dim), Path(folder))))
        return
    if bool(arguments.model) != bool(arguments.text):
        parser.error("real vectors need both --model and --text")
    sizes = sorted(arguments.size or SIZES)
    results = {"machine": {"threads": torch.get_num_threads()}}
    for name in ("random vectors around words", "words in their sentences"):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path, dim = Path(folder, "vectors"), arguments.dim
            if name.startswith("random"):
                write_random(path, sizes[-1] + N_QUERIES, dim)
            elif arguments.model:
                dim = write_real(path, sizes[-1] + N_QUERIES, arguments.model, arguments.text)
            else:
                continue
            results[name] = {n: measure_size(path, n, dim) for n in sizes}
        if not arguments.json:
            report(name, dim, results[name])
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
