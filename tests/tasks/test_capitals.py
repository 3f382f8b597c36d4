"""A task is one short file: it trains, stops early, resumes after a kill, predicts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from relmo.formats import native
from tasks import capitals

TASK = Path(capitals.__file__)


@pytest.fixture
def model(tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    return tmp_path / "model"


def test_it_is_short():
    assert len(TASK.read_text(encoding="utf-8").splitlines()) < 60


def test_it_trains_stops_early_and_predicts(model, tmp_path):
    tagger, outcome = capitals.run_task(model, tmp_path / "run", epochs=60, patience=6)
    assert outcome.reason == "patience"
    assert outcome.best["accuracy"] > 0.95
    tagger.eval()
    some = [capitals.SENTENCES[3], capitals.SENTENCES[160]]
    assert tagger.predict(some).tolist() == capitals.labels(some).tolist()


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(model, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(folder, *options):
        command = [sys.executable, TASK, model, tmp_path / folder, *options]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    whole = start("whole")
    assert whole.wait(120) == 0, whole.stderr.read()
    killed = start("killed")
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL  # it had not ended yet
    resumed = start("killed", "--resume")
    assert resumed.wait(120) == 0, resumed.stderr.read()
    one, other = (
        load_file(tmp_path / name / "checkpoints" / "last.safetensors")
        for name in ("whole", "killed")
    )
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
