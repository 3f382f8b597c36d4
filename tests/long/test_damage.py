"""Files with wrong bytes, by the thousand: refused or read, but no crash, no hang, no flood.

`RELMO_LONG_DAMAGES` (3000) files of each kind, read in a process of its own with little memory.
"""

import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import legacy
import numpy as np
import pytest

pytestmark = pytest.mark.long

DAMAGES = int(os.environ.get("RELMO_LONG_DAMAGES", "3000"))
OLD = Path(__file__).parents[1] / "data" / "0.1"

# Reads each path that comes on a line of its input, and answers with what became of it.
READER = """
import resource, sys, warnings
import relmo
from relmo.errors import RelmoError
warnings.simplefilter("ignore")
kind, good = sys.argv[1:]
read = {
    "model": lambda path: relmo.load(path).embed("a cat sat"),
    "index": lambda path: (i := relmo.VectorIndex(path)).search([[1.0] * i.dim]),
    "static": lambda path: relmo.StaticVectors.load(path).embed([["the", "cat"]]),
}[kind]
read(good)  # everything is imported, every thread is there
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
print("ready", flush=True)
for line in sys.stdin:
    try:
        read(line.rstrip("\\n"))
        print("read", flush=True)
    except RelmoError:
        print("refused", flush=True)
"""


def write_bilm_tf(folder):
    rng = np.random.default_rng(0)
    options = legacy.random_options(rng, n_layers=1, dim=5, projection_dim=3)
    tensors = legacy.random_bilm_tf(rng, options)
    softmax = legacy.normal(rng, 3, 3, scale=1), legacy.normal(rng, 3, scale=1)
    words = ["<S>", "</S>", "<UNK>"]
    legacy.write_bilm_tf(folder, options, tensors, softmax=softmax, vocabulary=words)


def write_zip(folder):
    write_bilm_tf(folder / "unpacked")
    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / "unpacked").iterdir():
            archive.write(path, path.name)
    shutil.rmtree(folder / "unpacked")


def write_static(folder):
    folder.mkdir()
    np.save(folder / "vectors.npy", np.eye(3, dtype=np.float32))
    (folder / "vocab.txt").write_text("the\ncat\nsat\n")


KINDS = {
    "relmo": ("model", lambda folder: shutil.copytree(OLD / "model", folder)),
    "bilm-tf": ("model", write_bilm_tf),
    "many-langs": ("model", lambda f: legacy.write_many_langs(f, np.random.default_rng(0))),
    "zip": ("model", lambda folder: (folder.mkdir(), write_zip(folder))),
    "index": ("index", lambda folder: shutil.copytree(OLD / "index", folder)),
    "static": ("static", write_static),
}


def damage(data, rng):
    """Some bytes replaced, put in, taken out or doubled; or the rest cut off."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        place = rng.randrange(len(data) + 1)
        if rng.random() < 0.5:  # where headers are
            place = rng.randrange(min(len(data), 2000) + 1)
        some = bytes(rng.choice([0, 255, 127, 128, rng.randrange(256)]) for _ in range(8))
        some = some[: rng.choice([1, 1, 2, 4, 8])]
        match rng.choice(["replace", "replace", "replace", "insert", "delete", "double", "cut"]):
            case "replace":
                data[place : place + len(some)] = some
            case "insert":
                data[place:place] = some
            case "delete":
                del data[place : place + len(some)]
            case "double":
                data[place:place] = data[place : place + rng.randrange(1, 200)]
            case "cut":
                del data[place:]
    return bytes(data)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_read(tmp_path, kind):
    reads, write = KINDS[kind]
    good, bad = tmp_path / "good", tmp_path / "bad"
    write(good)
    inside = "model.zip" if kind == "zip" else ""
    files = sorted(p.relative_to(good) for p in good.rglob("*") if p.suffix != ".md")
    run = [sys.executable, "-c", READER, reads, str(good / inside)]
    answers = {"read": 0, "refused": 0}
    with subprocess.Popen(
        run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout.readline() == "ready\n", reader.stderr.read()
        for seed in range(DAMAGES):
            rng = random.Random(seed)
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(good, bad)
            file = bad / rng.choice(files)
            file.write_bytes(damage(file.read_bytes(), rng))
            reader.stdin.write(f"{bad / inside}\n")
            reader.stdin.flush()
            answer = reader.stdout.readline().strip()
            if answer not in answers:
                pytest.fail(f"damage {seed} of {file.name}: {reader.communicate(timeout=60)[1]}")
            answers[answer] += 1
        reader.stdin.close()
        assert reader.wait(60) == 0
    assert answers["refused"] > DAMAGES / 10
