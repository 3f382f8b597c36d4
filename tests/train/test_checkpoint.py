"""Checkpoints that are never half there, and the directory of a run."""

import errno
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from relmo import __version__
from relmo.errors import CheckpointError, ConfigError, DataError, RelmoWarning
from relmo.train import checkpoint as module
from relmo.train.checkpoint import link_checkpoint, read_checkpoint, write_checkpoint
from relmo.train.run_directory import RunDirectory

TENSORS = {
    "net.weight": torch.arange(6.0).view(2, 3),
    "half": torch.tensor([1.5], dtype=torch.float16),
    "count": torch.tensor(2**40),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "nothing": torch.zeros(0, 4),
}
VALUES = {"step": 3, "loss": 0.1 + 0.2, "position": {"epoch": 1}, "best": None, "texts": ["é"]}
CONFIG = '[model]\nsize = 3\n\n[train]\nepochs = 10\nlearning_rate = 0.1\ndecay = "none"\n'


def names(path):
    return sorted(p.name for p in path.iterdir())


# ---- one file -----------------------------------------------------------------------------------


def test_round_trip(tmp_path):
    path = tmp_path / "last.safetensors"
    write_checkpoint(path, TENSORS, VALUES)
    found = read_checkpoint(path)
    assert found.values == VALUES
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].data_ptr() % 64 == 0  # memory of its own
    assert names(tmp_path) == ["last.safetensors"]


def test_what_was_read_does_not_hang_on_the_file(tmp_path):
    path = tmp_path / "last.safetensors"
    write_checkpoint(path, TENSORS, VALUES)
    found = read_checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(0)
    assert torch.equal(found.tensors["net.weight"], TENSORS["net.weight"])


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_cut_file_is_named_with_the_other_one(tmp_path, keep):
    last, best = (tmp_path / f"{name}.safetensors" for name in ("last", "best"))
    for path in (last, best):
        write_checkpoint(path, TENSORS, VALUES)
    last.write_bytes(last.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=rf"^{re.escape(str(last))}.*copy {best} over it"):
        read_checkpoint(last)


def test_the_same_file_under_another_name_is_no_help(tmp_path):
    last, best = (tmp_path / f"{name}.safetensors" for name in ("last", "best"))
    best.write_bytes(b"damaged")
    link_checkpoint(best, last)
    with pytest.raises(CheckpointError, match="Start a new run"):
        read_checkpoint(last)


@pytest.mark.parametrize(
    "header", [{}, {"values": "{"}, {"values": "[1]"}, {"values": "[" * 10**5}]
)
def test_foreign_files(tmp_path, header):
    from safetensors.torch import save_file

    path = tmp_path / "last.safetensors"
    save_file({"a": torch.zeros(1)}, path, header)
    with pytest.raises(CheckpointError, match=r"last\.safetensors is not a checkpoint"):
        read_checkpoint(path)


def test_no_pickle(tmp_path):
    path = tmp_path / "last.safetensors"
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_checkpoint(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"last\.safetensors"):
        read_checkpoint(tmp_path / "last.safetensors")


FULL = """
    import resource, sys, torch
    from pathlib import Path
    from relmo.errors import RelmoError
    from relmo.train.run_directory import RunDirectory
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    try:
        RunDirectory(Path({path!r})).save({{"a": torch.ones(100_000)}}, {{"step": 2}}, best={best})
    except RelmoError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("best", [True, False])
def test_a_full_disk_leaves_the_older_one(tmp_path, best):
    run = RunDirectory(tmp_path)
    run.last.parent.mkdir()
    run.save(TENSORS, VALUES, best=True)
    program = textwrap.dedent(FULL.format(limit=20_000, path=str(tmp_path), best=best))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert re.match(r"Cannot save .*File too large.*older checkpoint is untouched\.\n", done.stderr)
    assert names(run.last.parent) == ["best.safetensors", "last.safetensors"]
    for path in (run.last, run.best):
        assert read_checkpoint(path).values == VALUES


KILLED = """
    import torch
    from pathlib import Path
    from relmo.train.run_directory import RunDirectory
    run = RunDirectory(Path({path!r}))
    with run.opened("", resume={resume}):
        print("ready", flush=True)
        step = 1
        while True:
            weights = torch.full((4_000_000,), float(step))
            run.save({{"a": weights, "b": weights + 1}}, {{"step": step}}, best=step % 3 == 0)
            step += 1
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_writing(tmp_path):
    """kill -9 while a file is half written: last and best are whole, each of one moment."""
    path = tmp_path / "run"
    n_partial = 0
    for attempt in range(4):
        program = textwrap.dedent(KILLED.format(path=str(path), resume=attempt > 0))
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        run = RunDirectory(path)
        try:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.4 + 0.13 * attempt)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                if run.best.exists() and any(run.last.parent.glob(".*")):
                    break
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        n_partial += len(names(run.last.parent)) > 2
        for checkpoint in (read_checkpoint(run.last), read_checkpoint(run.best)):
            step = checkpoint.values["step"]
            assert torch.equal(checkpoint.tensors["a"], torch.full((4_000_000,), float(step)))
            assert torch.equal(checkpoint.tensors["b"], torch.full((4_000_000,), float(step + 1)))
    assert n_partial
    with run.opened("", resume=True):
        assert names(run.last.parent) == ["best.safetensors", "last.safetensors"]


# ---- the directory ------------------------------------------------------------------------------


def test_the_best_is_the_last_until_there_is_a_new_last(tmp_path):
    run = RunDirectory(tmp_path)
    run.last.parent.mkdir()
    run.save(TENSORS, {"step": 1}, best=False)
    assert not run.best.exists()
    run.save(TENSORS, {"step": 2}, best=True)
    assert run.best.samefile(run.last)
    run.save(TENSORS, {"step": 3}, best=False)
    steps = [read_checkpoint(path).values["step"] for path in (run.last, run.best)]
    assert steps == [3, 2]
    assert names(run.last.parent) == ["best.safetensors", "last.safetensors"]


def test_a_copy_where_files_cannot_be_linked(tmp_path, monkeypatch):
    def no_links(path, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    run = RunDirectory(tmp_path)
    run.last.parent.mkdir()
    run.save(TENSORS, VALUES, best=True)
    assert not run.best.samefile(run.last)
    assert read_checkpoint(run.last).values == VALUES
    assert names(run.last.parent) == ["best.safetensors", "last.safetensors"]


def test_killed_between_best_and_last_goes_on_from_the_older(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    run.last.parent.mkdir()
    run.save(TENSORS, {"step": 1}, best=True)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("relmo.train.run_directory.link_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        run.save(TENSORS, {"step": 2}, best=True)
    assert read_checkpoint(run.last).values["step"] == 1
    assert read_checkpoint(run.best).values["step"] == 2


def test_a_new_run_and_one_that_goes_on(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with run.opened(CONFIG, resume=False):
        assert run.config.read_text() == CONFIG
        run.write_environment(kernel="c", world_size=2)
    environment = json.loads(run.environment.read_text())
    assert environment["relmo"] == __version__
    assert environment["torch"] == torch.__version__
    assert environment["threads"] == torch.get_num_threads()
    assert (environment["kernel"], environment["world_size"]) == ("c", 2)
    assert {"python", "platform", "machine", "command", "started"} <= environment.keys()
    assert environment["machine"]["n_cores"] >= 1
    with run.opened(CONFIG, resume=False):  # nothing was learned: a start is no run yet
        run.save({"w": torch.zeros(2)}, {"step": 1}, best=False)
    with (
        pytest.raises(DataError, match=r"already holds a run\. Resume a run"),
        run.opened(CONFIG, resume=False),
    ):
        pass
    longer = CONFIG.replace("epochs = 10", "epochs = 20").replace("0.1", "0.05")
    with run.opened(longer, resume=True):
        assert run.config.read_text() == CONFIG  # until it is sure that the run goes on
        run.write_config(longer)
    assert run.config.read_text() == longer


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("size = 3", "size = 4", "model.size = 3, but 4 was asked for"),
        ('"none"', '"cosine"', "train.decay = 'none', but 'cosine'"),
        ("size = 3", "size = 3\nextra = true", "model.extra = None, but True"),
    ],
)
def test_a_run_goes_on_with_its_own_settings(tmp_path, old, new, said):
    run = RunDirectory(tmp_path)
    with run.opened(CONFIG, resume=False):
        pass
    with pytest.raises(ConfigError, match=said), run.opened(CONFIG.replace(old, new), resume=True):
        pass
    assert run.config.read_text() == CONFIG


def test_a_damaged_config(tmp_path):
    run = RunDirectory(tmp_path)
    with run.opened(CONFIG, resume=False):
        pass
    run.config.write_text("epochs =")
    with pytest.raises(ConfigError, match=r"config\.toml is damaged"), run.opened("", resume=True):
        pass


def test_directories_that_will_not_do(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(DataError, match="There is no run in"), run.opened(CONFIG, resume=True):
        pass
    assert not run.path.exists()
    with (
        pytest.raises(DataError, match="there is no directory"),
        RunDirectory(tmp_path / "a" / "b").opened(CONFIG, resume=False),
    ):
        pass
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(DataError, match=r"already holds thesis\.tex"),
        RunDirectory(tmp_path).opened(CONFIG, resume=False),
    ):
        pass


def test_an_empty_directory_will_do(tmp_path):
    with RunDirectory(tmp_path).opened(CONFIG, resume=False):
        assert "config.toml" in names(tmp_path)


def test_one_process_at_a_time(tmp_path):
    run = RunDirectory(tmp_path)
    with run.opened(CONFIG, resume=False):
        with (
            pytest.raises(DataError, match="Another process is training in"),
            RunDirectory(tmp_path).opened(CONFIG, resume=True),
        ):
            pass
        assert run.config.exists()
    with run.opened(CONFIG, resume=True):
        pass


LOCKED = """
    import sys, time
    from pathlib import Path
    from relmo.train.run_directory import RunDirectory
    with RunDirectory(Path({path!r})).opened("", resume=False):
        print("ready", flush=True)
        time.sleep(100)
"""


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_free(tmp_path):
    program = textwrap.dedent(LOCKED.format(path=str(tmp_path)))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        with (
            pytest.raises(DataError, match="Another process is training in"),
            RunDirectory(tmp_path).opened("", resume=True),
        ):
            pass
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with RunDirectory(tmp_path).opened("", resume=True):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_of_and_used(tmp_path, monkeypatch, number):
    import fcntl

    def no_locks(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    run = RunDirectory(tmp_path)
    with (
        pytest.warns(RelmoWarning, match="Cannot lock .* see to it that only one job"),
        run.opened(CONFIG, resume=False),
    ):
        run.save({"w": torch.zeros(2)}, {"step": 1}, best=False)
    assert run.last.exists()


def test_older_files_survive_an_error_of_ours(tmp_path, monkeypatch):
    path = tmp_path / "last.safetensors"
    write_checkpoint(path, TENSORS, VALUES)

    def fails(tensors, partial, metadata):
        Path(partial).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module.safetensors.torch, "save_file", fails)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path, {}, {})
    assert read_checkpoint(path).values == VALUES
    assert names(tmp_path) == ["last.safetensors"]
