"""The C kernel gives PyTorch's numbers, and everything works without it."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import epsilon, network_rounding, rounding

from relmo.model import kernels
from relmo.model.int8 import Int8Matrix, quantize
from relmo.model.lstm import ProjectedLstm

needs_kernel = pytest.mark.skipif(kernels.loops is None, reason=kernels.description)


def torch_cell(x, s, b, c, bound):
    i, f, g, o = (x.double() + s.double() + b.double()).chunk(4, dim=1)
    c = (f.sigmoid() * c.double() + i.sigmoid() * g.tanh()).clamp(-bound, bound)
    return o.sigmoid() * c.tanh(), c


def run_cell(x, s, b, c, bound):
    c, m = c.clone(), torch.empty_like(c)
    kernels.loops.cell(*(t.data_ptr() for t in (x, s, b, c, m)), *c.shape, bound)
    return m, c


def assert_same(found, expected, n_terms):
    """Equal but for the order in which so many terms were added on the way."""
    atol = rounding(n_terms, max(1.0, float(expected.detach().abs().max())))
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@needs_kernel
@settings(deadline=None)
@given(
    st.integers(0, 9),
    st.integers(1, 70),
    st.floats(0.01, 60),
    st.sampled_from([0.5, 3.0, math.inf]),
    st.integers(0, 2**32),
)
def test_cell_is_exact_to_a_few_units_in_the_last_place(n, dim, scale, bound, seed):
    torch.manual_seed(seed)
    x, s = (scale * torch.randn(n, 4 * dim) for _ in range(2))
    b, c = torch.randn(4 * dim), torch.randn(n, dim)
    everything = (x, s, b, c, bound)
    # Sums, exponentials, quotients and products: at most 8 roundings, of sizes 1 and that of c.
    bound = 8 * epsilon() * (1 + c.abs().double())
    for found, expected in zip(run_cell(*everything), torch_cell(*everything), strict=True):
        assert ((found.double() - expected).abs() <= bound).all()


@needs_kernel
def test_extremes():
    values = torch.tensor([0.0, -0.0, 1e-30, 1e30, -1e30, 88.0, -88.0, 104.0, -104.0, math.inf])
    x = values.repeat(4)[None]
    zeros = (torch.zeros_like(x), torch.zeros(40), torch.zeros(1, 10))
    m, c = run_cell(x, *zeros, 3.0)
    expected_m, expected_c = torch_cell(x, *zeros, 3.0)
    torch.testing.assert_close(m.double(), expected_m, rtol=0, atol=8 * epsilon())
    torch.testing.assert_close(c.double(), expected_c, rtol=0, atol=8 * epsilon())


@needs_kernel
def test_not_a_number_comes_through():
    x = torch.tensor([[math.nan, 1.0, 1.0, 1.0]])
    m, c = run_cell(x, torch.zeros_like(x), torch.zeros(4), torch.zeros(1, 1), 3.0)
    assert m.isnan().all()
    assert c.isnan().all()


@pytest.fixture(params=["baseline", "AVX2", None])
def instruction_set(request):
    """Each of the variants that this processor can run."""
    if kernels.loops is None:
        pytest.skip(kernels.description)
    found = kernels.loops.limit_to(request.param)
    yield found
    kernels.loops.limit_to(None)


@needs_kernel
@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("clips", [(None, None), (0.4, 0.2)])
def test_layer_with_and_without_the_kernel(instruction_set, projection, clips):
    torch.manual_seed(3)
    layer = ProjectedLstm(5, 24 if projection else 8, 8, *clips, projection=projection)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.5)
    assert kernels.loops.instruction_set() == instruction_set
    sizes = [9, 6, 5, 4, 4, 2, 1, 1]  # many sentences, then few: two ways through the kernel
    h, c = torch.randn(9, 8), torch.randn(9, 24 if projection else 8)
    x = torch.randn(sum(sizes), 5)
    before = [t.clone() for t in (x, h, c)]
    with_grad = layer(x, sizes, h, c)  # takes the plain path
    assert with_grad[0].grad_fn is not None
    with torch.inference_mode():
        fused = layer(x, sizes, h, c)
    for found, expected in zip(fused, with_grad, strict=True):
        assert_same(found, expected, len(sizes) * (5 + 8 + 24))
    for now, then in zip((x, h, c), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.slow
def test_the_switch_turns_it_off_and_changes_no_number(tiny, tiny_contents, tmp_path):
    tiny.save(tmp_path / "model")
    code = (
        "import sys, numpy, relmo\n"
        "from relmo.model import kernels\n"
        "assert kernels.loops is None\n"
        "print(kernels.description)\n"
        "model = relmo.load(sys.argv[1])\n"
        "numpy.save(sys.argv[2], model.embed('a few words in a row', layers='all'))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model", tmp_path / "vectors.npy"],
        env=os.environ | {"RELMO_KERNEL": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "RELMO_KERNEL=off" in found.stdout
    expected = tiny.embed("a few words in a row", layers="all")
    atol = network_rounding(tiny.config, 6)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, rtol=0, atol=atol)


@needs_kernel
@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_few_sentences_of_few_dimensions(dim, out, sizes, projection, seed):
    """Sizes that fill no vector register, and those that do, against PyTorch alone."""
    torch.manual_seed(seed)
    sizes = sorted(sizes, reverse=True)
    out = out if projection else dim
    layer = ProjectedLstm(3, dim, out, 2.0, 0.7, projection=projection)
    h, c, x = torch.randn(sizes[0], out), torch.randn(sizes[0], dim), torch.randn(sum(sizes), 3)
    with torch.inference_mode():
        fused = layer._read_fused(x, sizes, h, c, None)
        plain = layer._read_plainly(x, sizes, h, c, None)
    for found, expected in zip(fused, plain, strict=True):
        assert_same(found, expected, len(sizes) * (3 + out + dim))


def dequantized(weight):
    matrix = Int8Matrix(weight)
    return matrix.values.double() * matrix.scales[:, None]


@needs_kernel
def test_int8_loops_of_every_instruction_set(instruction_set):
    torch.manual_seed(5)
    x, weight = torch.randn(7, 37), torch.randn(11, 37)
    q, scales = quantize(x)
    assert ((q * scales[:, None] - x).abs() <= scales[:, None] * 0.5001).all()
    found = Int8Matrix(weight).apply(x)
    expected = q.double() * scales[:, None] @ dequantized(weight).t()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding(3, scale=100))


def test_a_layer_that_is_frozen_in_part_still_learns():
    layer = ProjectedLstm(3, 8, 4, 3.0, 3.0)
    layer.bias.requires_grad_(False)
    y, _, _ = layer(torch.randn(3, 3), [1, 1, 1], torch.zeros(1, 4), torch.zeros(1, 8))
    y.sum().backward()
    assert layer.recurrent_weight.grad is not None
    assert layer.bias.grad is None


@needs_kernel
def test_tensors_with_gaps_are_read_right():
    torch.manual_seed(2)
    layer = ProjectedLstm(3, 8, 4, 3.0, 3.0)
    sizes, x = [2, 1, 1], torch.randn(4, 3)
    h, c = torch.randn(4, 2).t(), torch.randn(8, 2).t()  # (2, 4), (2, 8), column by column
    for name, weight in list(layer.named_parameters()):
        gaps = torch.stack([weight, weight], dim=-1)[..., 0].detach()
        setattr(layer, name, torch.nn.Parameter(gaps))
    assert not layer.recurrent_weight.is_contiguous()
    with torch.inference_mode():
        fused = layer._read_fused(x, sizes, h, c, None)
        plain = layer._read_plainly(x, sizes, h, c, None)
    for found, expected in zip(fused, plain, strict=True):
        assert_same(found, expected, len(sizes) * (3 + 4 + 8))
