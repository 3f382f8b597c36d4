"""What several tests stand on: shared reference data, and a small model of our own making."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does

import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.formats import ModelContents
from relmo.model.bilm import BiLm
from relmo.presets import read_preset

SHARED = Path(__file__).parents[2] / "shared" / "data"


def close(found, expected, rtol=1e-5, atol=1e-6):
    """The measure of parity: as upstream's own tests have it, for vectors of unit scale."""
    return np.allclose(found, expected, rtol=rtol, atol=atol)


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
    return relmo.Model(tiny_contents)


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
