"""Int8: close to float32 by a known measure, and as independent of company as float32 is."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import epsilon, network_rounding, rounding

import relmo
from relmo.errors import ConfigError
from relmo.model import int8, kernels
from relmo.model.int8 import Int8Matrix, quantize

SENTENCES = ["the cat sat on the mat .", "a", "another sentence of some length , this one ."]


@pytest.fixture(params=["kernel", "PyTorch"])
def path(request, monkeypatch):
    """With the C kernel and without it."""
    if request.param == "PyTorch":
        monkeypatch.setattr(kernels, "loops", None)
    elif kernels.loops is None:
        pytest.skip(kernels.description)
    return request.param


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 64), (0, 8)])
def test_quantize_keeps_to_half_a_unit(path, shape):
    torch.manual_seed(0)
    x = torch.randn(shape) * 5
    q, scales = quantize(x)
    assert q.dtype == torch.int8
    assert ((q * scales[:, None] - x).abs() <= scales[:, None] * 0.5001).all()


def test_zeros_stay_zero_and_nan_is_not_hidden(path):
    q, scales = quantize(torch.zeros(2, 5))
    assert not q.any()
    assert not scales.any()
    x = torch.ones(1, 4)
    x[0, 1] = torch.nan
    assert Int8Matrix(torch.randn(3, 4)).apply(x).isnan().all()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(2, 70), st.integers(2, 20), st.integers(0, 2**32))
def test_product_is_near_the_exact_one(m, k, n, seed):
    torch.manual_seed(seed)
    x, weight = torch.randn(m, k), torch.randn(n, k)
    found = Int8Matrix(weight).apply(x, clip=4.0)
    # Each factor is off by at most half a unit of its row, and by what dividing by the unit rounds.
    half = 0.5 + 127 * 2 * epsilon()
    row = (x.abs().amax(1, keepdim=True) * half / 127).double()
    column = (weight.abs().amax(1) * half / int8.weight_limit()).double()
    x, weight = x.double(), weight.double()
    bound = row * weight.abs().sum(1) + column * x.abs().sum(1, keepdim=True) + k * row * column
    bound += rounding(3, scale=4.0)  # two scales and a sum, clipped at 4
    assert ((found - (x @ weight.t()).clamp(-4, 4)).abs() <= bound).all()


def test_vectors_are_close_to_float32_on_every_layer(path, tiny_contents):
    exact = relmo.Model(tiny_contents).embed(SENTENCES, layers="all")
    found = relmo.Model(tiny_contents, precision="int8").embed(SENTENCES, layers="all")
    for one, other in zip(found, exact, strict=True):
        norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        assert ((one * other).sum(-1) / norms).mean(axis=1).min() > 0.999
        assert not np.array_equal(one[1], other[1])


def test_company_changes_nothing(path, tiny_contents):
    model = relmo.Model(tiny_contents, precision="int8")
    together = model.embed(SENTENCES, layers="all")
    alone = [model.embed(sentence, layers="all") for sentence in SENTENCES]
    off = np.concatenate([np.abs(a - b).ravel() for a, b in zip(alone, together, strict=True)])
    # What comes out of the float32 encoder depends on company by its rounding. A value that is on
    # the edge between two units may fall either way, which moves what follows by less than 0.02.
    assert np.median(off) < network_rounding(model.config, 9)
    assert off.max() < 0.02


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 9), st.integers(2, 70), st.integers(0, 2**32))
def test_a_row_does_not_depend_on_the_others(m, k, seed):
    torch.manual_seed(seed)
    x, matrix = torch.randn(m, k) * torch.logspace(-3, 3, m)[:, None], Int8Matrix(torch.randn(5, k))
    assert torch.equal(matrix.apply(x), torch.cat([matrix.apply(row[None]) for row in x]))


def test_kernel_and_torch_agree(tiny_contents, monkeypatch):
    model = relmo.Model(tiny_contents, precision="int8")
    with_kernel = model.embed(SENTENCES, layers="all")
    monkeypatch.setattr(kernels, "loops", None)
    without = relmo.Model(tiny_contents, precision="int8").embed(SENTENCES, layers="all")
    for one, other in zip(with_kernel, without, strict=True):
        # As above: a value on the edge between two units.
        assert np.abs(one - other).max() < 0.02


def test_weights_are_frozen_and_saved_as_they_were(tiny_contents, tmp_path):
    model = relmo.Model(tiny_contents, precision="int8")
    assert not any(p.requires_grad for p in model.bilm.parameters())
    model.save(tmp_path / "model")
    for name, tensor in relmo.load(tmp_path / "model").bilm.state_dict().items():
        assert torch.equal(tensor, tiny_contents.tensors[name]), name


def test_processors_that_saturate_get_weights_of_seven_bits(monkeypatch):
    """What a product looks like where pairs are added in 16 bits."""

    def saturating(a, b):
        pairs = (a[:, :, None].int() + 128) * b[None].int()  # (m, k, n), shifted as oneDNN does
        pairs = (pairs[:, 0::2] + pairs[:, 1::2]).clamp(-(2**15), 2**15 - 1).sum(1)
        return pairs - 128 * b.int().sum(0)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    int8.weight_limit.cache_clear()
    try:
        assert int8.weight_limit() == 63
        assert "7 bits" in int8.describe()
    finally:
        int8.weight_limit.cache_clear()


@pytest.mark.parametrize("shape", [(3, 1), (1, 3)])
def test_a_single_row_or_column_is_refused(shape):
    with pytest.raises(ConfigError, match="two rows and columns"):
        Int8Matrix(torch.ones(shape))


def test_without_an_engine_the_message_says_so(monkeypatch, tiny_contents):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    int8.weight_limit.cache_clear()
    try:
        with pytest.raises(ConfigError, match="no int8 engine"):
            relmo.Model(tiny_contents, precision="int8")
        assert int8.describe().startswith("none")
    finally:
        int8.weight_limit.cache_clear()
