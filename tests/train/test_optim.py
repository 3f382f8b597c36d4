"""Row optimizers against PyTorch's, schedules, clipping, and going on bit for bit."""

import math
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from relmo.config import TrainConfig
from relmo.errors import CheckpointError, ConfigError
from relmo.train import optim
from relmo.train.checkpoint import read_checkpoint, write_checkpoint
from relmo.train.optim import (
    RowOptimizer,
    build_optimizer,
    clip_norm,
    learning_rate_at,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)

KINDS = ("adam", "adagrad")


def theirs(kind, parameter, learning_rate):
    """PyTorch's plain loop, of which neither ours nor the fused one is made."""
    if kind == "adam":
        return torch.optim.Adam([parameter], learning_rate, foreach=False)
    return torch.optim.Adagrad(
        [parameter], learning_rate, initial_accumulator_value=1.0, foreach=False
    )


def gradients(n, *shape, seed=0):
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source) * 10 ** (i % 3 - 1) for i in range(n)]


def assert_close_after(n_steps, tensor, other):
    """Each step of either rounds the values once or twice more."""
    bound = 2 * n_steps * torch.finfo(tensor.dtype).eps * float(other.abs().max())
    torch.testing.assert_close(tensor, other, rtol=0, atol=bound)


@pytest.mark.parametrize("shape", [(7, 5), (9,)])
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_equal_torch(kind, shape, monkeypatch):
    monkeypatch.setattr(optim, "BLOCK", 15)
    tensor = torch.randn(shape)
    parameter = tensor.clone().requires_grad_()
    reference, ours = theirs(kind, parameter, 0.05), RowOptimizer(kind, tensor)
    for i, gradient in enumerate(gradients(100, *shape)):
        rate = 0.05 / (1 + i)
        reference.param_groups[0]["lr"] = rate
        parameter.grad = gradient
        reference.step()
        ours.update(None, gradient, rate)
        assert_close_after(i + 1, tensor, parameter.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_learns_as_if_the_others_were_not_there(kind, monkeypatch):
    """Each row equals a dense optimizer of its own that steps when the row has a gradient."""
    monkeypatch.setattr(optim, "BLOCK", 8)
    tensor = torch.randn(6, 4)
    start = tensor.clone()
    alone = [row.clone().requires_grad_() for row in tensor]
    references = [theirs(kind, row, 0.1) for row in alone]
    ours = RowOptimizer(kind, tensor)
    source = torch.Generator().manual_seed(1)
    for gradient in gradients(40, 6, 4):
        rows = torch.randperm(5, generator=source)[:3]  # row 5 never occurs
        ours.update(rows, gradient[:3], 0.1)
        for row, its_gradient in zip(rows.tolist(), gradient, strict=False):
            alone[row].grad = its_gradient
            references[row].step()
    assert_close_after(40, tensor, torch.stack(alone).detach())
    assert torch.equal(tensor[5], start[5])
    assert not any(values[5].any() for values in ours.state().values())


def test_the_first_step_of_a_rare_row_is_no_longer_than_that_of_any_other():
    tensor = torch.zeros(2, 3)
    ours = RowOptimizer("adam", tensor)
    for _ in range(1000):
        ours.update(torch.tensor([0]), torch.ones(1, 3), 1e-3)
    ours.update(torch.tensor([1]), torch.full((1, 3), 7.0), 1e-3)
    assert tensor[1].tolist() == pytest.approx([-1e-3] * 3, rel=1e-5)


@pytest.mark.parametrize("rows", [None, torch.tensor([0])])
def test_adagrad_by_hand(rows):
    """The published recipe: rate 0.2 and sums that begin with 1."""
    tensor = torch.tensor([[1.0, -2.0]])
    ours = RowOptimizer("adagrad", tensor)
    ours.update(rows, torch.tensor([[3.0, 0.0]]), 0.2)
    assert tensor[0].tolist() == pytest.approx([1 - 0.6 / math.sqrt(10), -2])
    ours.update(rows, torch.tensor([[1.0, 2.0]]), 0.2)
    expected = [1 - 0.6 / math.sqrt(10) - 0.2 / math.sqrt(11), -2 - 0.4 / math.sqrt(5)]
    assert tensor[0].tolist() == pytest.approx(expected)


def test_no_rows_change_nothing():
    tensor = torch.ones(3, 2)
    RowOptimizer("adam", tensor).update(torch.empty(0, dtype=torch.long), torch.empty(0, 2), 1.0)
    assert tensor.tolist() == [[1, 1]] * 3


def test_the_tensor_of_a_parameter_is_changed_in_place():
    parameter = torch.nn.Parameter(torch.ones(3, 2))
    RowOptimizer("adagrad", parameter).update(torch.tensor([1]), torch.ones(1, 2), 1.0)
    assert parameter[1, 0] < 1 == parameter[0, 0]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_state_that_is_never_used_takes_no_memory():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    tensor = torch.empty(1_000_000, 100)
    before = resident()
    ours = RowOptimizer("adam", tensor)
    ours.update(torch.arange(1000), torch.ones(1000, 100), 0.1)
    assert resident() - before < 100 << 20  # of 800 MB


@pytest.mark.parametrize("kind", KINDS)
def test_rows_go_on_bit_for_bit(kind):
    def run(stop, n=12):
        tensor = torch.arange(12.0).view(6, 2) / 7
        ours = RowOptimizer(kind, tensor)
        for i, gradient in enumerate(gradients(n, 6, 2)):
            if i == stop:
                saved = {name: values.clone() for name, values in ours.state().items()}
                tensor = tensor.clone()
                ours = RowOptimizer(kind, tensor)
                ours.load(saved)
            ours.update(torch.tensor([i % 6, (i + 2) % 6]), gradient[:2], 0.1)
        return tensor

    assert torch.equal(run(stop=5), run(stop=None))


@pytest.mark.parametrize("kind", KINDS)
def test_dense_goes_on_bit_for_bit(kind):
    def run(stop, n=12):
        parameters = [torch.ones(4, 3, requires_grad=True), torch.ones(5, requires_grad=True)]
        unused = torch.ones(2, requires_grad=True)
        optimizer = build_optimizer(kind, [*parameters, unused], 0.1)
        both = zip(gradients(n, 4, 3), gradients(n, 5), strict=True)
        for i, pair in enumerate(both):
            if i == stop:
                saved = {name: t.clone() for name, t in optimizer_state(optimizer).items()}
                parameters = [p.detach().clone().requires_grad_() for p in parameters]
                optimizer = build_optimizer(kind, [*parameters, unused], 0.1)
                load_optimizer_state(optimizer, saved)
                before = {name: t.clone() for name, t in saved.items()}
            for parameter, gradient in zip(parameters, pair, strict=True):
                parameter.grad = gradient
            optimizer.step()
        if stop is not None:  # what was loaded from is the caller's, and stays as it is
            assert all(torch.equal(before[name], t) for name, t in saved.items())
        return parameters

    for found, expected in zip(run(stop=5), run(stop=None), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_fused_equals_the_plain_loop(kind):
    fused, plain = (torch.ones(30, requires_grad=True) for _ in range(2))
    both = build_optimizer(kind, [fused], 0.1), theirs(kind, plain, 0.1)
    for gradient in gradients(20, 30):
        fused.grad = plain.grad = gradient
        for optimizer in both:
            optimizer.step()
    assert_close_after(20, fused.detach(), plain.detach())


def _takes_sparse(kind):
    return kind is torch.optim.SparseAdam


# Every optimizer that PyTorch has, but for the base class and the one that wants a closure.
TORCH_OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind not in (torch.optim.Optimizer, torch.optim.LBFGS)
]
VARIANTS = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.Adam, {"fused": True}),
]


@pytest.mark.parametrize(
    ("kind", "options"), [*((kind, {}) for kind in TORCH_OPTIMIZERS), *VARIANTS]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_optimizer_of_torch_is_resumed_through_a_checkpoint(kind, options, tmp_path):
    def build(values):
        parameters = [value.clone().requires_grad_() for value in values]
        return parameters, kind(parameters, lr=0.05, **options)

    def step(parameters, optimizer, number):
        for place, parameter in enumerate(parameters[:-1]):  # the last one never learns
            gradient = gradients(8, *parameter.shape, seed=place)[number]
            parameter.grad = gradient.to_sparse() if _takes_sparse(kind) else gradient
        optimizer.step()

    start = [torch.ones(4, 3), torch.ones(5, 2), torch.ones(2, 2)]
    whole = build(start)
    for number in range(4):
        step(*whole, number)
    path = tmp_path / "state.safetensors"
    write_checkpoint(path, optimizer_state(whole[1]), {})
    resumed = build([parameter.detach() for parameter in whole[0]])
    load_optimizer_state(resumed[1], read_checkpoint(path).tensors)
    for number in range(4, 8):
        step(*whole, number)
        step(*resumed, number)
    for ours, theirs in zip(whole[0], resumed[0], strict=True):
        assert torch.equal(ours, theirs)
    before, after = (optimizer_state(optimizer) for _, optimizer in (whole, resumed))
    assert before.keys() == after.keys()
    assert torch.equal(whole[0][2], start[2])


class Counting(torch.optim.SGD):
    """Keeps what PyTorch's own rarely do: numbers, None, or what cannot be saved."""

    kept: ClassVar = {"n": 3, "rate": 0.1 + 0.2, "active": True, "buffer": None}

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].update(self.kept)


def test_numbers_and_none_keep_their_types():
    parameter = torch.ones(2, requires_grad=True)
    optimizer = Counting([parameter])
    optimizer.step()
    state = optimizer_state(optimizer)
    assert sorted(state) == ["0.active:bool", "0.buffer:none", "0.n:int", "0.rate:float"]
    resumed = Counting([parameter])
    load_optimizer_state(resumed, state)
    found = resumed.state[parameter]
    assert found == Counting.kept
    assert [type(value) for value in found.values()] == [int, float, bool, type(None)]
    state["0.buffer"] = torch.zeros(2)  # None at first, a tensor later
    del state["0.buffer:none"]
    load_optimizer_state(resumed, state)
    assert resumed.state[parameter]["buffer"].tolist() == [0, 0]


def test_what_cannot_be_saved_is_told(monkeypatch):
    monkeypatch.setattr(Counting, "kept", {"history": [torch.ones(1)]})
    optimizer = Counting([torch.ones(2, requires_grad=True)])
    optimizer.step()
    with pytest.raises(ConfigError, match="Counting keeps 'history' as list"):
        optimizer_state(optimizer)


def test_a_fresh_optimizer_knows_what_to_expect():
    def fresh(kind, **options):
        return kind([torch.ones(2, 3, requires_grad=True)], **options)

    used = fresh(torch.optim.Adam)
    used.param_groups[0]["params"][0].grad = torch.ones(2, 3)
    used.step()
    state = optimizer_state(used)
    load_optimizer_state(fresh(torch.optim.AdamW), state)  # the same names and shapes
    with pytest.raises(CheckpointError, match=r"0\.exp_avg is \[2, 3\], expected nothing"):
        load_optimizer_state(fresh(torch.optim.SGD, momentum=0.9), state)
    other = torch.optim.Adam([torch.ones(3, 2, requires_grad=True)])
    with pytest.raises(CheckpointError, match=r"0\.exp_avg is \[2, 3\], expected \[3, 2\]"):
        load_optimizer_state(other, state)
    assert not other.state  # trying it out left no trace


def test_state_of_something_else_is_refused():
    def optimizer(kind, *shapes):
        parameters = [torch.ones(shape, requires_grad=True) for shape in shapes]
        made = build_optimizer(kind, parameters, 0.1)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        made.step()
        return made

    state = optimizer_state(optimizer("adam", (2, 3), (4,)))
    assert sorted(state)[:3] == ["0.exp_avg", "0.exp_avg_sq", "0.step"]
    for other in (optimizer("adam", (2, 3)), optimizer("adam", (2, 3), (5,))):
        with pytest.raises(CheckpointError, match=r"does not fit: 1\.exp_avg is"):
            load_optimizer_state(other, state)
    with pytest.raises(CheckpointError, match="expected nothing"):
        load_optimizer_state(optimizer("adagrad", (2, 3), (4,)), state)
    del state["0.exp_avg_sq"]
    with pytest.raises(CheckpointError, match=r"0.exp_avg_sq is nothing, expected \[2, 3\]"):
        load_optimizer_state(optimizer("adam", (2, 3), (4,)), state)
    rows = RowOptimizer("adam", torch.ones(3, 2)).state()
    with pytest.raises(CheckpointError, match=r"is \[3\], expected \[4\]"):
        RowOptimizer("adam", torch.ones(4, 2)).load(rows)
    with pytest.raises(CheckpointError, match="expected nothing"):
        RowOptimizer("adagrad", torch.ones(3, 2)).load(rows)


def test_clip_norm_is_over_all_gradients_together():
    both = [torch.full((2, 2), 3.0), torch.tensor([8.0])]  # squares 36 + 64
    for max_norm in (None, 10.0, 11.0):
        assert clip_norm(both, max_norm) == pytest.approx(10)
        assert [g.flatten()[0].item() for g in both] == [3, 8]
    assert clip_norm(both, 5.0) == pytest.approx(10)
    assert both[0].flatten().tolist() == pytest.approx([1.5] * 4)
    assert both[1].tolist() == pytest.approx([4])
    assert clip_norm([], 5.0) == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_told_and_nothing_scaled(wrong):
    both = [torch.tensor([wrong]), torch.tensor([8.0])]
    assert not math.isfinite(clip_norm(both, 1.0))
    assert both[1].tolist() == [8]


@pytest.mark.parametrize(
    ("decay", "progress", "share"),
    [
        ("none", 0.9, 1),
        ("linear", 0, 1),
        ("linear", 0.25, 0.75),
        ("linear", 1.5, 0),
        ("cosine", 0, 1),
        ("cosine", 0.5, 0.5),
        ("cosine", 1, 0),
    ],
)
def test_decay(decay, progress, share):
    config = TrainConfig(learning_rate=0.4, decay=decay)
    assert learning_rate_at(config, 999, progress) == pytest.approx(0.4 * share)


def test_a_rate_in_a_tensor_is_set_in_place():
    rate = torch.tensor(1.0)
    optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=rate, foreach=False)
    set_learning_rate(optimizer, 0.25)
    assert rate.item() == 0.25


def test_warm_up_rises_evenly_and_never_starts_at_nothing():
    config = TrainConfig(learning_rate=0.4, warmup=4, decay="linear")
    found = [learning_rate_at(config, step, 0) for step in range(6)]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate_at(config, 1, 0.5) == pytest.approx(0.1)
