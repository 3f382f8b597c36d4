"""One LSTM layer against PyTorch's own, and its gradients."""

import pytest
import torch
from torch import nn

from relmo.model.lstm import ProjectedLstm

SIZES = [3, 3, 2, 1]  # sentences of 4, 3 and 2 tokens, packed


def build(cell_clip=None, projection_clip=None, projection=True):
    torch.manual_seed(0)
    layer = ProjectedLstm(
        5, 6 if projection else 4, 4, cell_clip, projection_clip, projection=projection
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 1.0)
    return layer.double()


def inputs(layer, requires_grad=False):
    torch.manual_seed(1)
    h_dim = layer.recurrent_weight.shape[1]
    c_dim = layer.bias.shape[0] // 4
    shapes = [(sum(SIZES), 5), (3, h_dim), (3, c_dim)]
    return [torch.randn(s, dtype=torch.float64, requires_grad=requires_grad) for s in shapes]


@pytest.mark.parametrize("projection", [True, False])
def test_equals_torch_without_clips(projection):
    layer = build(projection=projection)
    x, h, c = inputs(layer)
    theirs = nn.LSTM(5, c.shape[1], proj_size=4 if projection else 0).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(layer.input_weight)
        theirs.weight_hh_l0.copy_(layer.recurrent_weight)
        theirs.bias_ih_l0.copy_(layer.bias)
        theirs.bias_hh_l0.zero_()
        if projection:
            theirs.weight_hr_l0.copy_(layer.projection_weight)
    packed = nn.utils.rnn.PackedSequence(x, torch.tensor(SIZES))
    expected, (last_h, last_c) = theirs(packed, (h[None], c[None]))
    y, end_h, end_c = layer(x, SIZES, h, c)
    torch.testing.assert_close(y, expected.data)
    torch.testing.assert_close(end_h, last_h[0])
    torch.testing.assert_close(end_c, last_c[0])


def test_clips_bound_cell_and_output():
    layer = build(cell_clip=0.3, projection_clip=0.2)
    x, h, c = inputs(layer)
    y, _, end_c = layer(10 * x, SIZES, h, c)
    assert y.abs().max() == 0.2
    assert end_c.abs().max() == 0.3


@pytest.mark.slow
@pytest.mark.parametrize("clips", [(None, None), (1.0, 0.8)])
@pytest.mark.parametrize("projection", [True, False])
def test_gradcheck(clips, projection):
    layer = build(*clips, projection=projection)
    x, h, c = inputs(layer, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: layer(a[0], SIZES, *a[1:3]), (x, h, c))
    parameters = list(layer.parameters())

    def by_parameters(*values):
        names = [name for name, _ in layer.named_parameters()]
        return torch.func.functional_call(
            layer,
            dict(zip(names, values, strict=True)),
            (x.detach(), SIZES, h.detach(), c.detach()),
        )

    assert torch.autograd.gradcheck(by_parameters, tuple(parameters))


def test_no_tokens_leave_the_state_alone():
    layer = build()
    _, h, c = inputs(layer)
    y, end_h, end_c = layer(torch.empty(0, 5, dtype=torch.float64), [], h, c)
    assert y.shape == (0, 4)
    assert torch.equal(end_h, h)
    assert torch.equal(end_c, c)
