"""Several processes and one store: one computes, a killed one is resumed, none computes again."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from features.fakes import FakeFeatures

from relmo.features.store import FeatureStore

SENTENCES = [[f"w{i % 50}", f"v{i}"] for i in range(400)]
CHILD = """
import sys, time
from features.fakes import FakeFeatures
from relmo.features import fill
from relmo.features.store import FeatureStore
directory, seconds = sys.argv[1], float(sys.argv[2])
fill.BATCH_TOKENS, fill.PART_BYTES = 80, 1
sentences = [[f"w{i % 50}", f"v{i}"] for i in range(400)]
live = FakeFeatures()
def before_batch():
    print("batch", flush=True)
    time.sleep(seconds)
live.before_batch = before_batch
print("opening", flush=True)
stored = FeatureStore(directory).open(live, sentences)
print("computed", live.n_computed, float(stored.batch(sentences).values.double().sum()), flush=True)
"""


def start(directory, seconds):
    here = str(Path(__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    run = [sys.executable, "-c", CHILD, str(directory), str(seconds)]
    return subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process):
    """How many sentences a process computed, and the sum of its vectors."""
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    _, n_computed, total = shown.splitlines()[-1].split()
    return int(n_computed), float(total)


def expected_sum():
    values = FakeFeatures().batch(SENTENCES).values
    return values.half().double().sum().item()


@pytest.mark.slow
def test_a_killed_fill_is_resumed(tmp_path):
    process = start(tmp_path, 0.05)
    for line in ("opening", *["batch"] * 6):
        assert process.stdout.readline() == f"{line}\n"
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode != 0
    n_computed, total = finish(start(tmp_path, 0))
    # Sentences of 4 rows, 20 of them per part: five parts were complete.
    assert n_computed == len(SENTENCES) - 100
    assert total == pytest.approx(expected_sum(), abs=1e-6)
    assert finish(start(tmp_path, 0)) == (0, total)


@pytest.mark.slow
def test_of_two_processes_one_computes_and_both_read(tmp_path):
    processes = [start(tmp_path, 0.02) for _ in range(2)]
    (n_one, sum_one), (n_two, sum_two) = map(finish, processes)
    assert sorted([n_one, n_two]) == [0, len(SENTENCES)]
    assert sum_one == sum_two == pytest.approx(expected_sum(), abs=1e-6)


@pytest.mark.slow
def test_a_waiting_process_goes_on_after_one_that_is_killed(tmp_path):
    first = start(tmp_path, 1)
    for line in ("opening", "batch", "batch"):  # it has the lock, and a part is complete
        assert first.stdout.readline() == f"{line}\n"
    second = start(tmp_path, 0)
    assert second.stdout.readline() == "opening\n"
    time.sleep(0.3)
    first.kill()
    first.communicate(timeout=60)
    n_computed, total = finish(second)
    assert 0 < n_computed < len(SENTENCES)
    assert total == pytest.approx(expected_sum(), abs=1e-6)


def test_of_two_threads_one_computes_and_both_read(tmp_path):
    lives = [FakeFeatures(), FakeFeatures()]
    for live in lives:
        live.before_batch = lambda: time.sleep(0.1)
    found = [None, None]

    def work(number):
        stored = FeatureStore(tmp_path).open(lives[number], SENTENCES)
        found[number] = stored.batch(SENTENCES).values

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(live.n_computed for live in lives) == [0, len(SENTENCES)]
    assert torch.equal(found[0], found[1])
