"""The loop with a toy that is really trained: limits, resuming, signals, breakdowns."""

import json
import math
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from toy import BATCH, N_EPOCH_STEPS, ToyData, ToyLearner, make_config

from relmo.errors import CheckpointError, DataError, TrainingError
from relmo.train import state as state_module
from relmo.train.checkpoint import read_checkpoint, write_checkpoint
from relmo.train.log import read_metrics
from relmo.train.loop import Step, train
from relmo.train.run_directory import RunDirectory
from relmo.train.state import TrainState
from relmo.train.world import World

TOY = Path(__file__).with_name("toy.py")
TIMES = ("seconds", "units_per_s", "waiting")


def run_toy(learner, path, config=None, *, data=None, resume=False, **options):
    data = data or ToyData()
    config = config or make_config()
    run = RunDirectory(path)
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    return train(
        learner,
        data,
        config,
        run,
        World(),
        n_epoch_units=data.n_epoch_units,
        resume=resume,
        **options,
    )


def run_program(*arguments):
    command = [sys.executable, str(TOY), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def rows_without_times(path):
    return [
        {k: v for k, v in row.items() if k not in TIMES}
        for row in read_metrics(path / "metrics.jsonl")
    ]


def assert_same_weights(path, other, name="last"):
    ours, theirs = (
        read_checkpoint(p / "checkpoints" / f"{name}.safetensors") for p in (path, other)
    )
    assert ours.tensors.keys() == theirs.tensors.keys()
    for key, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs.tensors[key]), key
    times = ("seconds", "row_seconds", "waited")
    assert {k: v for k, v in ours.values.items() if k not in times} == {
        k: v for k, v in theirs.values.items() if k not in times
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of the program that nothing disturbed."""
    path = tmp_path_factory.mktemp("toy") / "whole"
    done = run_program(path)
    assert done.returncode == 0, done.stderr
    return path


# ---- limits -------------------------------------------------------------------------------------


def test_epochs_end_it_and_it_learns(tmp_path):
    outcome = run_toy(ToyLearner(dropout=0.0), tmp_path, make_config(epochs=8))
    assert (outcome.reason, outcome.step) == ("epochs", 8 * N_EPOCH_STEPS)
    assert outcome.units == outcome.step * BATCH
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"] / 3
    assert outcome.best["loss"] == min(row["valid_loss"] for row in rows if "valid_loss" in row)
    assert read_checkpoint(tmp_path / "checkpoints/last.safetensors").values["step"] == outcome.step


def test_tokens_end_it_and_drive_the_learning_rate(tmp_path):
    config = make_config(max_tokens=20 * BATCH - 1, decay="linear", warmup=0, epochs=100)
    learner = ToyLearner()
    rates = []
    learner.hook = lambda learner: rates.append(None)
    learn = learner.learn
    learner.learn = lambda batch, rate: (rates.append(rate), learn(batch, rate))[1]
    outcome = run_toy(learner, tmp_path, config)
    assert (outcome.reason, outcome.step) == ("max_tokens", 20)
    found = [rate for rate in rates if rate is not None]
    expected = [0.02 * (1 - step * BATCH / (20 * BATCH - 1)) for step in range(20)]
    assert found == pytest.approx(expected)


def test_minutes_end_it_and_add_up_over_starts(tmp_path):
    outcome = run_toy(ToyLearner(), tmp_path, make_config(max_minutes=0.2 / 60, epochs=None))
    assert outcome.reason == "max_minutes"
    assert 0.2 <= outcome.seconds < 5
    config = make_config(max_minutes=(outcome.seconds + 0.2) / 60, epochs=None)
    again = run_toy(ToyLearner(), tmp_path, config, resume=True)
    assert outcome.seconds + 0.2 <= again.seconds < outcome.seconds + 5
    assert again.step > outcome.step


def test_patience_ends_it_and_the_best_is_kept(tmp_path):
    learner = ToyLearner()
    losses = iter([5.0, 4.0, 4.5, 4.0, 1.0])
    learner.evaluate = lambda: {"loss": next(losses)}
    config = make_config(patience=2, validate_every=3, epochs=50)
    outcome = run_toy(learner, tmp_path, config)
    assert (outcome.reason, outcome.step) == ("patience", 12)
    assert outcome.best == {"loss": 4.0, "step": 6}
    assert read_checkpoint(tmp_path / "checkpoints/best.safetensors").values["step"] == 6
    assert read_checkpoint(tmp_path / "checkpoints/last.safetensors").values["step"] == 12
    # A run that has ended does nothing more, unless it is given more.
    assert run_toy(learner, tmp_path, config, resume=True) == outcome
    assert next(losses) == 1.0


def test_validation_comes_with_its_row(tmp_path):
    outcome = run_toy(ToyLearner(), tmp_path, make_config(epochs=2, validate_every=10))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [10, 20, 24]
    assert all("valid_loss" in row and "forward_perplexity" in row for row in rows)
    for row in rows:
        assert row["unit"] == "points"
        assert row["units"] == row["step"] * BATCH
        assert row["units_per_s"] > 0
        assert 0 <= row["waiting"] <= 1
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert outcome.reason == "epochs"


def test_waiting_for_data_is_measured(tmp_path):
    class Slow(ToyData):
        def batches(self, position):
            for item in super().batches(position):
                threading.Event().wait(0.04)
                yield item

    run_toy(ToyLearner(), tmp_path, make_config(epochs=1), data=Slow())
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["waiting"] > 0.5
    assert rows[-1]["units_per_s"] < 2 * BATCH / 0.04  # two batches were ready before


def test_nothing_to_train_on(tmp_path):
    class Empty(ToyData):
        def batches(self, position):
            return iter(())

    with pytest.raises(DataError, match="nothing to train on"):
        run_toy(ToyLearner(), tmp_path, data=Empty())


def test_an_error_of_the_data_is_raised(tmp_path):
    class Broken(ToyData):
        def batches(self, position):
            yield next(super().batches(position))
            raise DataError("shard 3 is damaged")

    with pytest.raises(DataError, match="shard 3 is damaged"):
        run_toy(ToyLearner(), tmp_path, data=Broken())


# ---- going on -----------------------------------------------------------------------------------


class Stop(Exception):
    pass


def stop_at(n):
    def hook(learner):
        if learner.n_steps == n:
            raise Stop

    return hook


@pytest.mark.parametrize("died_at", [1, 9, 14, 23])
def test_resumed_is_as_if_never_stopped(tmp_path, died_at):
    config = make_config(decay="cosine", checkpoint_minutes=1e-9)
    run_toy(ToyLearner(), tmp_path / "whole", config)
    data = ToyData()
    with pytest.raises(Stop):
        run_toy(ToyLearner(hook=stop_at(died_at)), tmp_path / "parts", config, data=data)
    # A checkpoint knows what was learned, not what had been read ahead.
    values = read_checkpoint(tmp_path / "parts/checkpoints/last.safetensors").values
    assert values["position"]["batch"] == values["step"] == died_at
    assert data.n_made > died_at
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1000, "loss": 1}\n{"step": 10')  # as a killed process leaves it
    outcome = run_toy(ToyLearner(), tmp_path / "parts", config, resume=True)
    assert outcome.step == 4 * N_EPOCH_STEPS
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", "best")
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "parts")


def test_a_resumed_run_tells_its_rate_although_validation_came_before(tmp_path):
    learner = ToyLearner()
    learner.evaluate = lambda: (time.sleep(0.5), {"loss": 1.0})[1]  # as long as many steps
    run_toy(learner, tmp_path, make_config(epochs=1))
    again = ToyLearner()
    again.hook = lambda _: time.sleep(0.03)  # rows have whole milliseconds
    run_toy(again, tmp_path, make_config(epochs=2), resume=True)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    first = next(i for i, row in enumerate(rows) if row["step"] > N_EPOCH_STEPS)
    before, after = rows[first - 1 : first + 1]
    rate = (after["units"] - before["units"]) / (after["seconds"] - before["seconds"])
    assert after["units_per_s"] == pytest.approx(rate, rel=0.2)
    assert 0 <= after["waiting"] <= 1


def test_resumed_before_the_first_checkpoint(tmp_path):
    config = make_config(epochs=1, checkpoint_minutes=1000)
    run_toy(ToyLearner(), tmp_path / "whole", config)
    with pytest.raises(Stop):
        run_toy(ToyLearner(hook=stop_at(5)), tmp_path / "parts", config)
    assert not (tmp_path / "parts" / "checkpoints" / "last.safetensors").exists()
    run_toy(ToyLearner(), tmp_path / "parts", config, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_the_seed_matters_and_the_state_of_the_generator_does_not(tmp_path):
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        learner = ToyLearner()
        torch.manual_seed(100 + number)
        run_toy(learner, tmp_path / str(number), make_config(seed=seed, epochs=1))
        weights.append(learner.net[0].weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_checkpoint_of_something_else(tmp_path):
    run_toy(ToyLearner(), tmp_path, make_config(epochs=1))
    run = RunDirectory(tmp_path)
    run.save({"a": torch.zeros(1)}, {"stage": 3}, best=False)
    with pytest.raises(CheckpointError, match=r"last\.safetensors is of another version"):
        run_toy(ToyLearner(), tmp_path, resume=True)


# What a checkpoint of version 0.1 holds beside tensors.
OLD_FIELDS = {
    *("step", "tokens", "seconds", "position", "best", "n_worse", "losses", "lowest"),
    *("row_step", "row_tokens", "row_seconds", "waited"),
}


def test_a_checkpoint_of_version_0_1_is_resumed_bit_for_bit(tmp_path):
    config = make_config(checkpoint_minutes=1e-9, decay="cosine")
    run_toy(ToyLearner(), tmp_path / "whole", config)
    with pytest.raises(Stop):
        run_toy(ToyLearner(hook=stop_at(23)), tmp_path / "old", config)
    run = RunDirectory(tmp_path / "old")
    for path in (run.best, run.last):
        checkpoint = read_checkpoint(path)
        values = dict(checkpoint.values)
        for new, old in (("units", "tokens"), ("row_units", "row_tokens")):
            values[old] = values.pop(new)
        values = {name: value for name, value in values.items() if name in OLD_FIELDS}
        assert values.keys() == OLD_FIELDS
        write_checkpoint(path, checkpoint.tensors, values)
    run_toy(ToyLearner(), tmp_path / "old", config, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "old")
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "old")


@pytest.mark.slow
def test_killed_at_a_random_step_and_resumed(tmp_path, whole):
    """kill -9 again and again: nothing is lost, and nothing is done twice."""
    chance = random.Random()  # the outcome must not depend on it
    for attempt in range(3):
        at = chance.randrange(3, 12)
        resume = ["--resume"] if attempt else []
        killed = run_program(tmp_path / "parts", *resume, "--at", at, "--kill", "SIGKILL")
        assert killed.returncode == -9, (at, killed.stderr)
    done = run_program(tmp_path / "parts", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_weights(whole, tmp_path / "parts")
    assert rows_without_times(whole) == rows_without_times(tmp_path / "parts")


# ---- signals ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_signals_save_and_leave(tmp_path, whole, name, code):
    options = ["--at", 10, "--kill", f"{name},SIGTERM", "--no-checkpoints"]
    stopped = run_program(tmp_path / "parts", *options)
    assert stopped.returncode == code, stopped.stderr
    assert stopped.stderr.startswith(f"Error: Interrupted ({name}) after step 11;")
    assert "Resume the run" in stopped.stderr
    assert stopped.stderr.count("\n") == 1
    assert run_program(tmp_path / "parts", "--resume").returncode == 0
    assert_same_weights(whole, tmp_path / "parts")
    assert rows_without_times(whole) == rows_without_times(tmp_path / "parts")


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    options = ["--at", 10, "--kill", "SIGINT,SIGINT", "--no-checkpoints"]
    stopped = run_program(tmp_path / "run", *options)
    assert "KeyboardInterrupt" in stopped.stderr
    values = read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").values
    assert values["step"] == 7  # of the validation


def test_handlers_are_restored_and_other_threads_need_none(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    run_toy(ToyLearner(), tmp_path / "a", make_config(epochs=1))
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    outcomes = []
    thread = threading.Thread(
        target=lambda: outcomes.append(run_toy(ToyLearner(), tmp_path / "b", make_config(epochs=1)))
    )
    thread.start()
    thread.join()
    assert outcomes[0].reason == "epochs"


# ---- when it goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [Step(math.nan, BATCH, 1.0), Step(1.0, BATCH, math.inf)])
def test_what_is_not_finite_ends_it_and_is_never_saved(tmp_path, broken):
    learner = ToyLearner()
    learn = learner.learn
    learner.learn = lambda batch, rate: learn(batch, rate) if learner.n_steps < 13 else broken
    with pytest.raises(TrainingError, match="at step 14") as error:
        run_toy(learner, tmp_path, make_config(checkpoint_minutes=1e-9))
    last = tmp_path / "checkpoints" / "last.safetensors"
    assert str(last) in str(error.value)
    assert "learning_rate" in str(error.value)
    assert read_checkpoint(last).values["step"] == 13
    rows = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in rows
    assert [json.loads(line)["step"] for line in rows.splitlines()] == [7, 10]


def test_broken_before_anything_was_saved(tmp_path):
    learner = ToyLearner()
    learner.learn = lambda batch, rate: Step(math.nan, BATCH, 1.0)
    with pytest.raises(TrainingError, match="Nothing was saved yet"):
        run_toy(learner, tmp_path)


def test_a_validation_that_is_not_finite(tmp_path):
    learner = ToyLearner()
    learner.evaluate = lambda: {"loss": math.nan}
    with pytest.raises(TrainingError, match="loss of nan at step 7"):
        run_toy(learner, tmp_path)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_divergence_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(state_module, "RECENT_STEPS", 10)
    learner = ToyLearner()
    learn = learner.learn

    def rising(batch, rate):
        step = learn(batch, rate)
        loss = 4.0 if learner.n_steps < 24 else 4.0 + 0.5 * (learner.n_steps - 24)
        return Step(loss, step.n_units, step.gradient_norm)

    learner.learn = rising
    with pytest.raises(TrainingError, match=r"diverges, the loss rose from 4\.0.. to 8\.") as error:
        run_toy(learner, tmp_path, make_config(epochs=100))
    assert "best.safetensors" in str(error.value)


def test_small_or_negative_losses_do_not_diverge():
    for low, high in ((0.01, 0.5), (-8.0, -1.0), (0.0, 0.9)):
        train_state = TrainState()
        for loss in [low] * 150 + [high] * 150:
            train_state.add_step(Step(loss, 1, 1.0), {})
            assert train_state.rise(0) is None
    train_state = TrainState(losses=[9.0] * 100, step=100)
    assert train_state.rise(1) is None  # the warm-up is no part of it
    assert train_state.lowest is None


# ---- several ranks ------------------------------------------------------------------------------


def run_ranks(*arguments):
    """The program on two ranks under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(random.randrange(20_000, 40_000)), str(TOY)]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path):
    assert run_program(tmp_path / "one", "--dropout", 0).returncode == 0
    done = run_ranks(tmp_path / "two", "--dropout", 0)
    assert done.returncode == 0, done.stderr
    one, two = (
        read_checkpoint(tmp_path / name / "checkpoints/last.safetensors") for name in ("one", "two")
    )
    assert one.values["step"] == two.values["step"] == 4 * N_EPOCH_STEPS
    for name, tensor in one.tensors.items():
        assert torch.allclose(tensor, two.tensors[name], rtol=0, atol=1e-5), name
    for ours, theirs in zip(
        rows_without_times(tmp_path / "one"), rows_without_times(tmp_path / "two"), strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_and_one_rank_can_go_on(tmp_path):
    options = ["--dropout", 0, "--no-checkpoints"]
    stopped = run_ranks(
        tmp_path / "two", *options, "--at", 10, "--kill", "SIGTERM", "--only-rank", 1
    )
    assert stopped.returncode != 0
    assert stopped.stderr.count("Interrupted (SIGTERM) after step 11;") == 2
    assert run_program(tmp_path / "two", *options, "--resume").returncode == 0
    assert run_program(tmp_path / "one", *options).returncode == 0
    one, two = (
        read_checkpoint(tmp_path / name / "checkpoints/last.safetensors") for name in ("one", "two")
    )
    for name, tensor in one.tensors.items():
        assert torch.allclose(tensor, two.tensors[name], rtol=0, atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_killed_rank_ends_the_job_with_a_message(tmp_path, dies):
    ended = run_ranks(tmp_path / "run", "--at", 10, "--kill", "SIGKILL", "--only-rank", dies)
    assert ended.returncode != 0
    assert f"Error: Process {1 - dies}: another process of this job ended" in ended.stderr
    assert "resume the run" in ended.stderr
    assert run_program(tmp_path / "run", "--resume").returncode == 0
