"""Two ranks under torchrun learn what one learns; when one dies, the job ends and says so."""

import os
import signal
import time
from pathlib import Path

import pytest
from runs import (
    SMALL,
    largest_difference,
    last_checkpoint,
    rows_without_times,
    run_ranks,
    settings,
    write_lines,
)

from relmo.pretraining import pretrain

pytestmark = pytest.mark.slow

# Sampled softmax, seven steps an epoch or so, of which some have a row more for one of the ranks.
# Adagrad: of a gradient that is all rounding, Adam would make a step of full length.
ALIKE = ("objective.dropout=0", "train.learning_rate=0.001", "train.optimizer=adagrad")
EPS = 2.0**-23  # of float32


@pytest.fixture
def text(tmp_path):
    path = write_lines(tmp_path / "text.txt", 60)
    path.write_text(path.read_text() + "One more line .\n")
    return path


def assert_rounding_apart(one, two):
    """Every step may round each value once more, in one run and in the other."""
    checkpoint = last_checkpoint(one)
    values = [t for name, t in checkpoint.tensors.items() if not name.endswith(".step")]
    largest = max(float(tensor.abs().max()) for tensor in values)
    assert largest_difference(one, two) <= 2 * checkpoint.values["step"] * EPS * largest


@pytest.mark.parametrize("layout", ["segments", "stream"])
def test_two_ranks_equal_one_and_one_goes_on_from_two(tmp_path, text, layout):
    cache, one, two = (tmp_path / name for name in ("cache", "one", "two"))
    changes = [*ALIKE, f"data.layout={layout}"]
    options = {"preset": "tiny", "valid": [str(text)], "settings": [*SMALL, *changes]}
    whole = pretrain(one, [str(text)], values={"train.epochs": 1}, cache=cache, **options)
    shown = ["--preset", "tiny", "--valid", text, "--epochs", "1", "--cache", cache]
    with run_ranks("pretrain", text, "-o", two, *shown, *settings(*changes)) as ranks:
        _, errors = ranks.communicate(timeout=100)
    assert ranks.returncode == 0, errors
    assert errors.count("The model is") == 1
    assert last_checkpoint(two).values["step"] == whole.step >= 5
    assert_rounding_apart(one, two)
    for ours, theirs in zip(rows_without_times(one), rows_without_times(two), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4)

    for run in (one, two):
        outcome = pretrain(run, values={"train.epochs": 2}, resume=True, cache=cache)
        assert outcome.step == 2 * whole.step
    assert_rounding_apart(one, two)


def ranks_of(pid):
    """The processes that torchrun started, by rank."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for child in children:
        pairs = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        place = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
        if b"RANK" in place:
            found[int(place[b"RANK"])] = int(child)
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("dies", [0, 1])
def test_a_killed_rank_ends_the_job_with_a_message(tmp_path, text, dies):
    run, cache = tmp_path / "run", tmp_path / "cache"
    shown = ["--preset", "tiny", "--valid", text, "--epochs", "100000", "--cache", cache]
    with run_ranks("pretrain", text, "-o", run, *shown, *settings()) as ranks:
        deadline = time.monotonic() + 100
        while not (run / "checkpoints" / "last.safetensors").exists():
            assert ranks.poll() is None, ranks.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(ranks_of(ranks.pid)[dies], signal.SIGKILL)
        _, errors = ranks.communicate(timeout=60)  # a silent partner would be given half an hour
    assert ranks.returncode != 0
    assert f"Error: Process {1 - dies}: another process of this job ended" in errors
    assert "resume the run. Options: --resume." in errors
    step = last_checkpoint(run).values["step"]
    limit = last_checkpoint(run).values["units"] + 1
    values = {"train.max_tokens": limit, "train.epochs": 100_000}
    assert pretrain(run, values=values, resume=True, cache=cache).step == step + 1
