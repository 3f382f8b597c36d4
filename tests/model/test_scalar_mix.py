"""The mix of layers."""

import pytest
import torch

from relmo.errors import ConfigError
from relmo.model.scalar_mix import ScalarMix

LAYERS = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])


def test_starts_as_the_average():
    torch.testing.assert_close(ScalarMix(3)(LAYERS, MASK), LAYERS.mean(0))


def test_weights_and_gamma():
    mix = ScalarMix(3, weights=[0.0, 1.0, -1.0], gamma=2.0)
    w = torch.tensor([0.0, 1.0, -1.0]).softmax(0)
    expected = 2 * (w[0] * LAYERS[0] + w[1] * LAYERS[1] + w[2] * LAYERS[2])
    torch.testing.assert_close(mix(LAYERS, MASK), expected)


def test_layer_norm_is_over_all_real_tokens_together():
    mix = ScalarMix(3, layer_norm=True)
    expected = 0
    for layer in LAYERS:
        real = layer[MASK]
        expected = expected + (layer - real.mean()) / (real.var(unbiased=False) + 1e-13).sqrt() / 3
    torch.testing.assert_close(mix(LAYERS, MASK), expected)


def test_layer_norm_does_not_see_padding():
    other = LAYERS.clone()
    other[:, ~MASK] = 1e6
    mix = ScalarMix(3, layer_norm=True)
    torch.testing.assert_close(mix(other, MASK)[MASK], mix(LAYERS, MASK)[MASK])


def test_fixed_weights_have_no_gradient():
    mix = ScalarMix(3, weights=[1.0, 2.0, 3.0], trainable=False)
    assert not any(p.requires_grad for p in mix.parameters())


def test_penalty():
    assert ScalarMix(2, weights=[1.0, 2.0]).penalty(0.1).item() == pytest.approx(0.5)


def test_dropout_only_while_training():
    mix = ScalarMix(3, dropout=0.5)
    assert (mix(LAYERS, MASK) == 0).any()
    assert not (mix.eval()(LAYERS, MASK) == 0).any()


@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradcheck(layer_norm):
    mix = ScalarMix(3, layer_norm=layer_norm, weights=[0.1, 0.2, 0.3]).double()
    layers = LAYERS.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mix(x, MASK), (layers,))
    names = [name for name, _ in mix.named_parameters()]

    def by_parameters(*values):
        return torch.func.functional_call(
            mix, dict(zip(names, values, strict=True)), (layers.detach(), MASK)
        )

    assert torch.autograd.gradcheck(by_parameters, tuple(mix.parameters()))


def test_wrong_numbers_of_layers():
    with pytest.raises(ConfigError, match="3 layers got 2 weights"):
        ScalarMix(3, weights=[1.0, 2.0])
    with pytest.raises(ConfigError, match=r"ScalarMix\(3\)"):
        ScalarMix(2)(LAYERS, MASK)
