"""The hand-written way back through a layer, against autograd of the plain cell."""

import pytest
import torch
from tolerance import rounding
from torch.autograd import gradcheck

from relmo.model import kernels
from relmo.model.bidirectional import run_layer
from relmo.model.lstm import ProjectedLstm

SIZES = [3, 3, 2, 1]  # three sentences of 4, 3 and 2 tokens
NAMES = ("input_weight", "recurrent_weight", "bias", "projection_weight")
CLIPS = {"none": (None, None), "tight": (0.3, 0.25), "wide": (3.0, 3.0), "cell": (0.3, None)}


def build(clips, *, projection=True, dtype=torch.float64, dim=3, cell=4):
    torch.manual_seed(1)
    out = dim if projection else cell
    layers = tuple(
        ProjectedLstm(dim, cell, out, *CLIPS[clips], projection=projection).to(dtype)
        for _ in range(2)
    )
    with torch.no_grad():
        for layer in layers:
            for weight in layer.parameters():
                weight.mul_(2).add_(torch.randn_like(weight) * 0.3)
    x = torch.randn(2, sum(SIZES), dim, dtype=dtype, requires_grad=True)
    h = (0.5 * torch.randn(2, 4, out, dtype=dtype)).requires_grad_()  # a fourth, already at its end
    c = (0.5 * torch.randn(2, 4, cell, dtype=dtype)).requires_grad_()
    return layers, x, h, c


def read_by_autograd(layers, x, h, c):
    ways = [layer._read_plainly(x[w], SIZES, h[w], c[w], None) for w, layer in enumerate(layers)]
    return [torch.stack(both) for both in zip(*ways, strict=True)]


@pytest.mark.parametrize(
    ("clips", "projection"),
    [
        *[("none", True), ("none", False), ("cell", False)],
        pytest.param("tight", True, marks=pytest.mark.slow),
    ],
)
def test_gradcheck(clips, projection):
    layers, x, h, c = build(clips, projection=projection)
    weights = [w for layer in layers for w in layer.parameters()]

    def read(x, h, c, *weights):
        return run_layer(layers, x, SIZES, h, c)

    thorough = (clips, projection) == ("tight", True)  # number by number; others by projections
    assert gradcheck(read, (x, h, c, *weights), fast_mode=not thorough)


@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_those_of_autograd(clips, projection, dtype):
    layers, x, h, c = build(clips, projection=projection, dtype=dtype, dim=6, cell=17)
    inputs = [x, h, c, *(w for layer in layers for w in layer.parameters())]
    answers = []
    for outputs in (run_layer(layers, x, SIZES, h, c), read_by_autograd(layers, x, h, c)):
        torch.manual_seed(2)
        loss = sum((out * torch.randn_like(out)).sum() for out in outputs)
        answers.append((*outputs, *torch.autograd.grad(loss, inputs)))
    n_terms = len(SIZES) * (6 + 6 + 4 * 17) + sum(SIZES)  # through all steps, then over all rows
    epsilon = str(dtype).removeprefix("torch.")
    for found, expected in zip(*answers, strict=True):
        atol = rounding(n_terms, max(1.0, float(expected.detach().abs().max())), epsilon)
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def test_clips_that_are_reached_let_no_gradient_through():
    layers, x, h, c = build("tight")
    y, _, last_c = run_layer(layers, x, SIZES, h, c)
    assert (y.abs() == 0.25).any()
    assert (last_c.abs() == 0.3).any()
    (gradient,) = torch.autograd.grad(y[0][y[0].abs() == 0.25].sum(), x)
    assert not gradient.any()


@pytest.mark.parametrize("frozen", NAMES)
def test_what_is_frozen_gets_no_gradient(frozen):
    layers, x, h, c = build("wide")
    getattr(layers[1], frozen).requires_grad_(False)
    y, *_ = run_layer(layers, x.detach(), SIZES, h.detach(), c.detach())
    y.sum().backward()
    for way, layer in enumerate(layers):
        for name in NAMES:
            expected = way == 0 or name != frozen
            assert (getattr(layer, name).grad is not None) == expected


def test_learning_reads_what_embedding_reads():
    layers, x, h, c = build("wide", dtype=torch.float32, dim=6, cell=17)
    learned = run_layer(layers, x, SIZES, h, c)
    with torch.no_grad():
        read = run_layer(layers, x, SIZES, h, c)
    for found, expected in zip(learned, read, strict=True):
        atol = rounding(len(SIZES) * (6 + 6 + 17), scale=3)  # where both clips are
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def test_two_backward_passes_give_the_same():
    layers, x, h, c = build("wide", dtype=torch.float32)
    y, *_ = run_layer(layers, x, SIZES, h, c)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(y.sum(), x)[0])


@pytest.mark.skipif(kernels.loops is None, reason="the C kernel is not there")
@pytest.mark.parametrize("instruction_set", ["baseline", "AVX2", "AVX-512"])
def test_every_variant_of_the_kernel(instruction_set):
    limit = None if instruction_set == "AVX-512" else instruction_set
    if kernels.loops.limit_to(limit) != instruction_set:
        kernels.loops.limit_to(None)
        pytest.skip(f"this processor has no {instruction_set}")
    try:
        assert kernels.loops.instruction_set() == instruction_set
        test_gradients_are_those_of_autograd("tight", True, torch.float32)
    finally:
        kernels.loops.limit_to(None)


def test_nothing_to_read():
    layers, x, h, c = build("wide")
    y, last_h, last_c = run_layer(layers, x[:, :0], [], h, c)
    assert y.shape == (2, 0, 3)
    assert torch.equal(last_h, h)
    assert torch.equal(last_c, c)
    last_h.sum().backward()
    assert torch.equal(h.grad, torch.ones_like(h))
