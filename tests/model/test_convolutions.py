"""Max-pooled convolutions, and their hand-written gradient, against those of PyTorch."""

import pytest
import torch
from tolerance import rounding
from torch.nn import functional

from relmo.model import convolutions, kernels
from relmo.model.convolutions import max_pooled

needs_kernel = pytest.mark.skipif(kernels.loops is None, reason="the C kernel is not there")
LENGTHS = [1, 2, 2, 3, 5, 5, 7, 9]
PADDING = 19


def build(dtype=torch.float32, dim=5):
    torch.manual_seed(3)
    used = torch.tensor(LENGTHS)
    characters = torch.randint(0, PADDING, (len(LENGTHS), 12))
    characters[torch.arange(12) >= used[:, None]] = PADDING
    embedding = torch.randn(20, dim, dtype=dtype, requires_grad=True)
    shapes = ((6, 1), (7, 2), (17, 3))
    filters = [torch.randn(n, dim, w, dtype=dtype, requires_grad=True) for n, w in shapes]
    return characters, embedding, filters


def by_torch(characters, embedding, filters):
    x = embedding[characters].transpose(1, 2)
    return torch.cat([functional.conv1d(x, f).amax(dim=2) for f in filters], dim=1)


def gradients(answers, embedding, filters):
    torch.manual_seed(4)
    weights = torch.randn_like(answers) * (torch.rand_like(answers) > 0.4)  # some are switched off
    return torch.autograd.grad((answers * weights).sum(), (embedding, *filters))


def assert_close(found, expected, n_terms):
    """Equal but for the order in which so many terms of the size of the result are added."""
    scale = n_terms**0.5 * float(expected.detach().abs().max())
    atol = rounding(n_terms, scale, str(expected.dtype).removeprefix("torch."))
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 30, 2048])
def test_answers_and_gradients(dtype, block, monkeypatch):
    monkeypatch.setattr(convolutions, "MAX_POSITIONS", block)
    characters, embedding, filters = build(dtype)
    found = max_pooled(characters, LENGTHS, embedding, filters)
    expected = by_torch(characters, embedding, filters)
    assert_close(found, expected, 3 * 5)
    pairs = zip(
        gradients(found, embedding, filters), gradients(expected, embedding, filters), strict=True
    )
    for one, other in pairs:
        assert_close(one, other, len(LENGTHS) * 12)
    with torch.no_grad():
        assert_close(max_pooled(characters, LENGTHS, embedding, filters), expected, 3 * 5)


@needs_kernel
def test_the_kernel_is_what_learns(monkeypatch):
    characters, embedding, filters = build()
    called = []
    monkeypatch.setattr(convolutions, "_backward", lambda *args: called.append(args))
    with pytest.raises(TypeError):
        max_pooled(characters, LENGTHS, embedding, filters).sum().backward()
    assert called


@needs_kernel
@pytest.mark.parametrize("instruction_set", ["baseline", "AVX2", "AVX-512"])
def test_every_variant_of_the_kernel(instruction_set, monkeypatch):
    limit = None if instruction_set == "AVX-512" else instruction_set
    if kernels.loops.limit_to(limit) != instruction_set:
        kernels.loops.limit_to(None)
        pytest.skip(f"this processor has no {instruction_set}")
    try:
        assert kernels.loops.instruction_set() == instruction_set
        test_answers_and_gradients(torch.float32, 30, monkeypatch)
    finally:
        kernels.loops.limit_to(None)


def test_no_words():
    characters, embedding, filters = build()
    found = max_pooled(characters[:0], [], embedding, filters)
    assert found.shape == (0, 30)
    found.sum().backward()
    assert not embedding.grad.any()
