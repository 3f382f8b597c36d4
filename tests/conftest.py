"""What several tests stand on: shared reference data, and a small model of our own making."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does

import hypothesis
import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.formats import ModelContents
from relmo.model.bilm import BiLm
from relmo.presets import read_preset

# Two workers of pytest-xdist on two cores: more threads would only stand in each other's way. Tests
# of threads ask for as many as they need.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# A shell that starts tests in the background lets them ignore Ctrl-C, and the processes that they
# interrupt too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: what an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("quick", deadline=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("quick")
LONG_FACTOR = 20  # of the examples that a test asks for itself

SHARED = Path(__file__).parents[2] / "shared" / "data"


def close(found, expected, rtol=1e-5, atol=1e-6):
    """The measure of parity: as upstream's own tests have it, for vectors of unit scale."""
    return np.allclose(found, expected, rtol=rtol, atol=atol)


def pytest_collection_modifyitems(config, items):
    """Leave out tests marked `long` unless they are asked for; give them all more examples then."""
    if "long" not in config.getoption("markexpr"):
        long = {item for item in items if item.get_closest_marker("long")}
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]
    if config.getoption("hypothesis_profile") == "long":
        for test in {item.function for item in items if hypothesis.is_hypothesis_test(item.obj)}:
            own = test._hypothesis_internal_use_settings
            if own.max_examples != hypothesis.settings.default.max_examples:
                n = LONG_FACTOR * own.max_examples
                test._hypothesis_internal_use_settings = hypothesis.settings(own, max_examples=n)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Leave the user's cache alone; processes that a test starts inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELMO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def elmo_fixtures() -> Path:
    folder = SHARED / "elmo-fixtures"
    if not folder.is_dir():
        pytest.skip("the reference models are not beside the project (../shared/data)")
    return folder


@pytest.fixture(scope="session")
def tiny_contents() -> ModelContents:
    """A tiny model of random weights, loud enough that every layer says something."""
    torch.manual_seed(7)
    config = read_preset("tiny").model.model_copy(update={"tokenizer": "whitespace"})
    bilm = BiLm(config)
    with torch.no_grad():
        for name, parameter in bilm.named_parameters():
            if "stack" in name:
                parameter.mul_(2)
            elif "convolutions" in name:
                parameter.normal_(0, 0.5)
    return ModelContents(config, bilm.state_dict(), "a test")


@pytest.fixture
def tiny(tiny_contents: ModelContents) -> relmo.Model:
    """A model of its own for each test, whose weights may be changed."""
    tensors = {name: tensor.clone() for name, tensor in tiny_contents.tensors.items()}
    return relmo.Model(replace(tiny_contents, tensors=tensors))


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Run relmo in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", print)  # main replaces it: put it back afterwards

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["relmo", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capfd.readouterr()

    return run
