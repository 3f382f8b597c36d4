"""Compare the Chinese segmenters jieba and rjieba on a text file.

    python benchmarks/segmenters.py TEXT.txt

The numbers of docs/adr/0004-chinese-segmenter.md come from here. Prints the start-up
time and the speed of each (best of three, whole file, one thread), how far they agree, and a
sample. jieba is no dependency of relmo; in an environment of its own, install both with
    pip install jieba==0.42.1 'setuptools<81' rjieba==0.2.2
"""

import sys
import time
from pathlib import Path


def spans(words):
    """Half-open character spans of consecutive words."""
    found, start = set(), 0
    for word in words:
        found.add((start, start + len(word)))
        start += len(word)
    return found


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def load_segmenters():
    """Name to (start-up seconds, cut), each imported and with its dictionary read."""
    start = time.perf_counter()
    import rjieba

    rjieba.cut("中")
    middle = time.perf_counter()
    try:
        import jieba
    except ImportError as error:
        sys.exit(f"{error}: install it with  pip install jieba==0.42.1 'setuptools<81'")
    jieba.setLogLevel("ERROR")
    jieba.lcut("中")
    end = time.perf_counter()
    return {"jieba": (end - middle, jieba.lcut), "rjieba": (middle - start, rjieba.cut)}


def main(path):
    text = Path(path).read_text(encoding="utf-8")
    segmenters = load_segmenters()
    speed = {}
    for name, (startup, cut) in segmenters.items():
        speed[name] = len(text) / min(seconds(lambda cut=cut: cut(text)) for _ in range(3))
        print(f"{name:7} start-up {startup:5.2f} s   {speed[name]:12,.0f} characters/s")
    print(f"rjieba is {speed['rjieba'] / speed['jieba']:.1f} times as fast as jieba")

    ours, theirs = (segmenters[name][1] for name in ("rjieba", "jieba"))
    ours_all, theirs_all = spans(ours(text)), spans(theirs(text))
    f1 = 2 * len(ours_all & theirs_all) / (len(ours_all) + len(theirs_all))
    print(f"words: rjieba {len(ours_all):,}, jieba {len(theirs_all):,}; agreement (F1) {f1:.4%}")

    lines = [line.strip() for line in text.splitlines() if line.strip()]
    differing = [line for line in lines if ours(line) != theirs(line)]
    print(f"lines that differ: {len(differing):,} of {len(lines):,}")
    for line in differing[:3]:
        first, _ = min(spans(ours(line)) ^ spans(theirs(line)))
        around = line[max(0, first - 10) : first + 10]
        print("  rjieba", " ".join(ours(around)))
        print("  jieba ", " ".join(theirs(around)))
    sample = max(lines, key=len)[:40]
    print("sample:", " ".join(ours(sample)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
