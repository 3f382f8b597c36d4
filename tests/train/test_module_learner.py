"""`ModuleLearner` with `Examples` under the loop: it learns, stops early, resumes, predicts."""

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from module_toy import ACCURACY, OPTIMIZERS, Net, build, collate, make_config, make_examples
from torch import nn

from relmo.config import TrainConfig
from relmo.errors import CheckpointError, ConfigError, TrainingError
from relmo.train.checkpoint import read_checkpoint
from relmo.train.ema import MovingAverage
from relmo.train.examples import Examples
from relmo.train.log import read_metrics
from relmo.train.loop import Metric, train
from relmo.train.module_learner import ModuleLearner
from relmo.train.optim import Clipping
from relmo.train.run_directory import RunDirectory

TOY = Path(__file__).with_name("module_toy.py")
TIMES = ("seconds", "row_seconds", "waited", "units_per_s", "waiting")
ERROR = Metric("error", higher_is_better=False)


def run_program(*arguments):
    command = [sys.executable, str(TOY), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def opened(path):
    (path / "checkpoints").mkdir(parents=True)
    return RunDirectory(path)


def without_times(values):
    return {name: value for name, value in values.items() if name not in TIMES}


def assert_same_run(path, other):
    """Checkpoints and metrics, bit for bit but for times."""
    for name in ("last", "best"):
        ours, theirs = (
            read_checkpoint(p / "checkpoints" / f"{name}.safetensors") for p in (path, other)
        )
        assert ours.tensors.keys() == theirs.tensors.keys()
        for key, tensor in ours.tensors.items():
            assert torch.equal(tensor, theirs.tensors[key]), key
        assert without_times(ours.values) == without_times(theirs.values)
    rows = [[*map(without_times, read_metrics(p / "metrics.jsonl"))] for p in (path, other)]
    assert rows[0] == rows[1]


def regression(n_units=4, **options):
    """One weight that is to become 2, learned from the one batch there is."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    values = {
        "loss": lambda module, x: ((module(x) - 2 * x).square().mean(), n_units),
        "evaluate": lambda module: {"error": abs(float(module.weight) - 2)},
        "optimizer": torch.optim.SGD(net.parameters()),
        "decides": ERROR,
        **options,
    }
    return ModuleLearner(net, **values), Examples([[1.0]], torch.tensor, batch_size=1)


# ---- all together -------------------------------------------------------------------------------


def test_it_learns_stops_early_and_predicts(tmp_path):
    learner, data = build()
    config = make_config(epochs=40, patience=4)
    run = opened(tmp_path / "run")
    outcome = train(learner, data, config, run, n_epoch_units=len(data), restore_best=True)
    assert outcome.reason == "patience"
    assert outcome.best["accuracy"] > 0.9
    rows = read_metrics(run.metrics)
    assert rows[0] | {"unit": "words", "epoch": 0, "units": 160} == rows[0]
    assert {"units_per_s", "batch_accuracy", "loss"} <= rows[0].keys()
    assert not {"tokens", "words_per_s", "perplexity", "valid_loss"} & rows[0].keys()
    scored = [row for row in rows if "accuracy" in row]
    assert [row["step"] for row in scored] == [15 * n for n in range(1, len(scored) + 1)]
    assert max(row["accuracy"] for row in scored) == outcome.best["accuracy"]
    assert learner.evaluate() == {"accuracy": outcome.best["accuracy"]}  # the best is restored
    with learner.evaluating() as module:
        found = module(collate([("aex", 0), ("xea", 0), ("bbbb", 0)])[0]) > 0
    assert found.tolist() == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_killed_and_resumed_bit_for_bit(tmp_path, optimizer):
    """kill -9 at steps that nobody chose, with dropout, averages, plateaus and two groups."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--optimizer", optimizer]
    assert run_program(whole, *options).returncode == 0
    chance = random.Random()  # the outcome must not depend on it
    for attempt in range(2):
        at = chance.randrange(2, 25)
        resume = ["--resume"] if attempt else []
        killed = run_program(parts, *options, *resume, "--kill-at", at)
        assert killed.returncode == -9, (at, killed.stderr)
    done = run_program(parts, *options, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_run(whole, parts)


class Stop(Exception):
    pass


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resumed_in_another_learner(tmp_path, optimizer):
    config, n_steps = make_config(optimizer), []

    def hook():
        n_steps.append(1)
        if len(n_steps) > 22:  # in the middle of an epoch
            raise Stop

    learner, data = build(optimizer)
    train(learner, data, config, opened(tmp_path / "whole"))
    first, data = build(optimizer, hook=hook)
    with pytest.raises(Stop):
        train(first, data, config, opened(tmp_path / "parts"))
    again, data = build(optimizer)
    outcome = train(again, data, config, RunDirectory(tmp_path / "parts"), resume=True)
    assert (outcome.reason, outcome.step) == ("epochs", 60)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    for name, tensor in learner.state().items():
        assert torch.equal(tensor, again.state()[name]), name


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(random.randrange(20_000, 40_000)), str(TOY)]
    program = TOY.read_text().replace("nn.Dropout(0.1)", "nn.Dropout(0.0)")
    changed = tmp_path / "toy.py"
    changed.write_text(program)
    command[-1] = str(changed)
    done = subprocess.run(
        [*command, str(tmp_path / "two"), "--optimizer", "sgd"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    alone = [sys.executable, str(changed), str(tmp_path / "one"), "--optimizer", "sgd"]
    assert subprocess.run(alone, timeout=120).returncode == 0
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [row["units"] for row in one] == [row["units"] for row in two]
    # Rounding grows as training goes on; at first it is a few times float32's epsilon per step.
    eps = torch.finfo(torch.float32).eps
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=10 * 100 * eps)
    assert two[0]["gradient_norm"] == pytest.approx(one[0]["gradient_norm"], rel=10 * 1000 * eps)


# ---- without a run directory --------------------------------------------------------------------


def test_without_a_run_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learner, data = build()
    outcome = train(learner, data, make_config(epochs=2))
    assert outcome.step == 30
    assert not list(tmp_path.iterdir())
    other, data = build()
    train(other, data, make_config(epochs=2), opened(tmp_path / "run"))
    for name, tensor in learner.state().items():
        assert torch.equal(tensor, other.state()[name]), name


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("restore", [True, False])
def test_the_best_state_is_restored_if_asked_for(tmp_path, has_run, restore):
    learner, data = regression()
    scores = iter([0.5, 0.9, 0.7])
    learner._evaluate = lambda module: {"error": -next(scores), "weight": float(module.weight)}
    config = TrainConfig(learning_rate=0.1, epochs=3, validate_epochs=1, clip_norm=None)
    run = opened(tmp_path / "run") if has_run else None
    outcome = train(learner, data, config, run, restore_best=restore)
    assert outcome.best["step"] == 2
    weight = float(learner.module.weight.detach())
    assert (weight == outcome.best["weight"]) == restore


def test_resuming_needs_a_run_directory():
    learner, data = regression()
    for wrong in ("resume", "tensorboard"):
        with pytest.raises(ConfigError, match="need a run directory"):
            train(learner, data, TrainConfig(), **{wrong: True})


# ---- what is left as it was ---------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_global_random_state_and_threads_are_left_alone(fails):
    def evaluate(module):
        torch.set_num_threads(1)
        torch.rand(3)
        if fails:
            raise KeyError("no such label")
        return {"error": 1.0}

    learner, data = regression(evaluate=evaluate)
    torch.manual_seed(77)
    expected = torch.rand(5)
    torch.manual_seed(77)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if fails:
            with pytest.raises(KeyError):
                train(learner, data, TrainConfig(epochs=2))
        else:
            train(learner, data, TrainConfig(epochs=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.rand(5), expected)


def test_submodules_keep_their_modes():
    learner, _ = build()
    learner.module.dropout.eval()
    with learner.evaluating() as module:
        assert not any(part.training for part in module.modules())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert learner.module.lstm.training
    assert not learner.module.dropout.training


# ---- schedules and validation -------------------------------------------------------------------


def rates_of(learner, data, config, run=None, **options):
    rates, learn = [], learner.learn
    learner.learn = lambda batch, rate: (rates.append(rate), learn(batch, rate))[1]
    train(learner, data, config, run, **options)
    return rates


def scored_by(scores):
    learner, data = regression()
    left = iter(scores)
    learner._evaluate = lambda module: {"error": next(left)}
    return learner, data


def test_the_rate_falls_on_a_plateau_and_a_resumed_run_remembers(tmp_path):
    scores = [5, 4, 4, 6, 3, 3.5, 3.6, 3.7, 3.8, 2]
    settings = {"learning_rate": 0.1, "decay": "plateau", "plateau_patience": 2}
    settings |= {"plateau_factor": 0.1, "validate_every": 1}
    learner, data = scored_by(scores)
    expected = [0.1] * 4 + [0.01] * 3 + [0.001] * 2 + [0.0001]
    rates = rates_of(learner, data, TrainConfig(epochs=10, **settings))
    assert rates == pytest.approx(expected)
    run = opened(tmp_path)
    learner, data = scored_by(scores[:6])
    rates = rates_of(learner, data, TrainConfig(epochs=6, **settings), run)
    learner, data = scored_by(scores[6:])
    rates += rates_of(learner, data, TrainConfig(epochs=10, **settings), run, resume=True)
    assert rates == pytest.approx(expected)


def test_a_plateau_after_the_warm_up():
    learner, data = scored_by([1, 2, 3, 4])
    settings = {"decay": "plateau", "plateau_patience": 1, "warmup": 2, "validate_every": 1}
    rates = rates_of(learner, data, TrainConfig(learning_rate=0.4, epochs=4, **settings))
    assert rates == pytest.approx([0.2, 0.4, 0.2, 0.1])


@pytest.mark.parametrize(("higher", "step"), [(True, 2), (False, 1)])
def test_the_metric_says_which_score_is_better(higher, step):
    learner, data = scored_by([1.0, 3.0, 2.0, 2.0])
    learner.decides = Metric("error", higher_is_better=higher)
    config = TrainConfig(epochs=9, validate_every=1, patience=2)
    outcome = train(learner, data, config)
    assert (outcome.reason, outcome.best["step"]) == ("patience", step)


def test_validation_every_two_epochs():
    validated = []

    def evaluate(module):
        validated.append(1)
        return {"error": 1.0}

    learner, _ = regression(evaluate=evaluate)
    data = Examples([[1.0]] * 5, torch.tensor, batch_size=2)  # three batches
    seen, learn = [], learner.learn
    learner.learn = lambda batch, rate: (seen.append(len(validated)), learn(batch, rate))[1]
    train(learner, data, TrainConfig(epochs=5, validate_epochs=2, validate_every=1))
    assert seen == [0] * 6 + [1] * 6 + [2] * 3
    assert len(validated) == 3  # and once in the end


def test_without_units_per_epoch_a_schedule_goes_by_whole_epochs():
    learner, _ = regression()
    data = Examples([[1.0]] * 4, torch.tensor, batch_size=2)
    rates = rates_of(learner, data, TrainConfig(learning_rate=1, epochs=2, decay="linear"))
    assert rates == [1, 1, 0.5, 0.5]
    learner, _ = regression(n_units=2)
    config = TrainConfig(learning_rate=1, epochs=2, decay="linear")
    assert rates_of(learner, data, config, n_epoch_units=4) == [1, 0.75, 0.5, 0.25]


def test_a_learner_that_does_not_give_what_decides():
    learner, data = regression(evaluate=lambda module: {"accuracy": 1.0})
    with pytest.raises(TrainingError, match="decides by error, but its evaluation gave accuracy"):
        train(learner, data, TrainConfig(epochs=1))
    learner, data = regression(evaluate=lambda module: {"error": math.nan})
    with pytest.raises(TrainingError, match="broke down: error of nan at step 1"):
        train(learner, data, TrainConfig(epochs=1))


# ---- updates ------------------------------------------------------------------------------------


def test_groups_learn_at_multiples_of_the_rate():
    net = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(3)])
    groups = [
        {"params": net[0].parameters()},
        {"params": net[1].parameters(), "rate_factor": 0.1},
        {"params": net[2].parameters(), "rate_factor": 0.0},
    ]
    learner = ModuleLearner(
        net,
        loss=lambda module, x: (sum(part.weight.sum() for part in module), 1),
        evaluate=lambda module: {"error": 0.0},
        optimizer=torch.optim.SGD(groups),
        decides=ERROR,
    )
    before = [float(part.weight.detach()) for part in net]
    learner.learn(None, 0.5)
    moved = [old - float(part.weight.detach()) for old, part in zip(before, net, strict=True)]
    assert moved == pytest.approx([0.5, 0.05, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("clip", "moved"),
    [
        (Clipping(), [3.0, -4.0]),
        (Clipping(value=3.5), [3.0, -3.5]),
        (Clipping(norm=1.0), [0.6, -0.8]),
        (Clipping(norm=1.0, value=3.0), [0.5**0.5, -(0.5**0.5)]),
    ],
)
def test_gradients_are_clipped_by_norm_by_value_or_both(clip, moved):
    net = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(net.weight)
    learner = ModuleLearner(
        net,
        loss=lambda module, x: ((module.weight * torch.tensor([-3.0, 4.0])).sum(), 1),
        evaluate=lambda module: {"error": 0.0},
        optimizer=torch.optim.SGD(net.parameters()),
        decides=ERROR,
        clip=clip,
    )
    assert learner.learn(None, 1.0).gradient_norm == pytest.approx(5.0)
    assert net.weight.detach()[0].tolist() == pytest.approx(moved)


def test_gradients_that_are_not_finite_change_nothing():
    learner, _ = regression(clip=Clipping(norm=1.0, value=1.0), ema=0.5)
    before = {name: tensor.clone() for name, tensor in learner.state().items()}
    step = learner.learn(torch.tensor([[math.inf]]), 1.0)
    assert not math.isfinite(step.gradient_norm)
    for name, tensor in learner.state().items():
        assert torch.equal(tensor, before[name]), name


def test_sparse_gradients_are_clipped_too():
    net = nn.Embedding(5, 2, sparse=True)
    learner = ModuleLearner(
        net,
        loss=lambda module, ids: (3 * module(ids).sum(), 1),
        evaluate=lambda module: {"error": 0.0},
        optimizer=torch.optim.SparseAdam(net.parameters()),
        decides=ERROR,
        clip=Clipping(value=2.0),
    )
    before = net.weight.detach().clone()
    step = learner.learn(torch.tensor([1, 1, 3]), 0.1)
    assert step.gradient_norm == pytest.approx(math.sqrt(2 * (36 + 9)))
    changed = (net.weight.detach() != before).any(dim=1)
    assert changed.tolist() == [False, True, False, True, False]


# ---- moving averages ----------------------------------------------------------------------------


def test_averages_are_evaluated_saved_and_forget_their_start():
    found = []
    learner, _ = regression(ema=0.9, evaluate=lambda module: {"error": float(module.weight)})
    average, batch = 0.0, torch.tensor([[1.0]])
    for n in range(12):
        learner.learn(batch, 0.05)
        decay = min(0.9, (1 + n) / (10 + n))
        weight = float(learner.module.weight.detach())
        average = decay * average + (1 - decay) * weight
        found.append(learner.evaluate()["error"])
        assert found[-1] == pytest.approx(average, rel=12 * 2**-23)
        assert float(learner.module.weight.detach()) == weight  # training has its own again
    assert float(learner.state()["ema.weight"]) == found[-1]
    assert learner.state()["module.weight"].item() != found[-1]


def test_weights_come_back_after_an_error():
    weight = torch.tensor([1.0])
    average = MovingAverage({"w": weight}, 0.5)
    weight.fill_(3.0)
    average.update()
    inside = []

    def fails():
        with average.applied():
            inside.append(weight.item())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert inside == pytest.approx([0.1 * 1 + 0.9 * 3])
    assert weight.item() == 3.0
    with pytest.raises(ConfigError, match="from 0 to below 1"):
        MovingAverage({}, 1.0)
    with pytest.raises(CheckpointError, match="average of weights does not fit: w is"):
        average.load({"w": torch.zeros(2), "n_updates": torch.tensor(0)})


# ---- borders ------------------------------------------------------------------------------------


def test_an_optimizer_that_needs_a_closure_is_refused():
    net = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="LBFGS evaluates the loss several times per step"):
        regression(optimizer=torch.optim.LBFGS(net.parameters()))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda loss: loss, r"returned Tensor of shape \[\], expected the mean loss"),
        (lambda loss: (loss,), r"returned \(Tensor of shape \[\]\)"),
        (lambda loss: (loss.item(), 1), r"returned \(float, int\)"),
        (lambda loss: (loss.expand(2), 2), r"returned \(Tensor of shape \[2\], int\)"),
        (lambda loss: (loss, 1, 0.5), r"returned \(Tensor of shape \[\], int, float\)"),
    ],
)
def test_a_loss_that_returns_something_else(returned, said):
    learner, data = regression(loss=lambda module, x: returned(module(x).square().mean()))
    with pytest.raises(TrainingError, match=f"^`loss` {said}"):
        train(learner, data, TrainConfig(epochs=1))


def test_an_evaluation_that_returns_something_else():
    learner, data = regression(evaluate=lambda module: 0.5)
    said = r"`evaluate` returned float, expected scores by name\. .* \{\"error\": 0\.5\}"
    with pytest.raises(TrainingError, match=said):
        train(learner, data, TrainConfig(epochs=1))


def test_a_run_that_is_no_run_directory_or_is_not_open(tmp_path):
    learner, data = regression()
    config = TrainConfig(epochs=1)
    with pytest.raises(ConfigError, match="`run` is of type str, expected a RunDirectory"):
        train(learner, data, config, str(tmp_path))
    run = RunDirectory(str(tmp_path / "run"))  # a string will do
    assert run.last == tmp_path / "run" / "checkpoints" / "last.safetensors"
    with pytest.raises(ConfigError, match=r"run is not open\. Train inside `with run\.opened"):
        train(learner, data, config, run)
    with run.opened("", resume=False):
        assert train(learner, data, config, run).reason == "epochs"


def test_a_checkpoint_of_another_module():
    learner, _ = build()
    other, _ = regression()
    with pytest.raises(CheckpointError, match="does not fit the module"):
        other.load(learner.state())


def test_modules_that_share_weights_are_saved(tmp_path):
    net = Net()
    tied = nn.ModuleList([net.output, nn.Linear(16, 1)])
    tied[1].weight = tied[0].weight
    learner = ModuleLearner(
        tied,
        loss=lambda module, x: (module[1](x).sum(), 1),
        evaluate=lambda module: {"accuracy": 0.0},
        optimizer=torch.optim.Adam(tied.parameters()),
        decides=ACCURACY,
        ema=0.9,
    )
    learner.learn(torch.ones(1, 16), 0.1)
    run = opened(tmp_path)
    run.save(learner.state(), {}, best=False)
    found = read_checkpoint(run.last).tensors
    assert torch.equal(found["module.0.weight"], found["module.1.weight"])
    learner.load(found)
    assert tied[0].weight is tied[1].weight


def test_the_example_of_the_docstring():
    import doctest

    from relmo.train import examples, module_learner

    for module in (module_learner, examples):
        found = doctest.testmod(module)
        assert found.attempted > 3
        assert found.failed == 0


def test_the_toy_can_be_wrong():
    """Else its accuracy would say nothing."""
    labels = [label for _, label in make_examples(100, seed=9)]
    assert 20 < sum(labels) < 80
