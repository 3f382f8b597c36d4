"""`kill -9` at moments that nobody chose, many times over: `RELMO_LONG_KILLS` runs (30)."""

import os
import random
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("RELMO_LONG_KILLS", "30"))
SETTINGS = (
    "model.encoder.character_dim=4",
    "model.encoder.filters=[[1, 8], [2, 8]]",
    "model.lstm.cell_dim=12",
    "model.lstm.projection_dim=8",
    "data.batch_tokens=128",
    "data.n_streams=8",
    "data.n_steps=8",
    "objective.n_samples=32",
    "train.warmup=5",
    "train.validate_every=7",
    "train.checkpoint_minutes=1e-9",  # after every step
)
MAX_TOKENS = 40_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("kills"), random.Random(0)
    words = [f"w{i}" for i in range(300)]
    lines = (" ".join(rng.choices(words, k=rng.randrange(1, 20))) for _ in range(400))
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    return folder


def command(folder, run, *arguments):
    start = [sys.executable, "-m", "relmo", "pretrain", folder / "text.txt", "-o", folder / run]
    start += ["--max-tokens", MAX_TOKENS, "--cache", folder / "cache", "--threads", 1]
    return [*map(str, [*start, *arguments])]


def begin(folder, run, layout):
    values = (*SETTINGS, f"data.layout={layout}")
    changes = [part for value in values for part in ("--set", value)]
    return command(folder, run, "--preset", "tiny", "--lines", *changes)


def tensors(run):
    with safe_open(run / "checkpoints" / "last.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module", params=["segments", "stream"])
def undisturbed(request, folder):
    """A run that nobody disturbs: its layout, weights, and the seconds that it took."""
    started = time.monotonic()
    subprocess.run(begin(folder, f"whole-{request.param}", request.param), check=True, timeout=600)
    seconds = time.monotonic() - started
    return request.param, tensors(folder / f"whole-{request.param}"), seconds


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_at_any_moment_it_comes_to_the_same_end(folder, undisturbed, seed):
    layout, expected, seconds = undisturbed
    rng, name = random.Random(seed), f"{layout}-{seed}"
    n_kills, start = 0, begin(folder, name, layout)
    while True:
        resumable = (folder / name / "checkpoints" / "last.safetensors").exists()
        if resumable:
            start = command(folder, name, "--resume")
        with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
            try:
                patience = rng.uniform(0, seconds) if n_kills < 5 else 600
                _, said = process.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                process.kill()
                n_kills += 1
                continue
        assert process.returncode == 0, said
        break
    found = tensors(folder / name)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), (key, n_kills)
