"""The whole network: against the oracle, in any batch, with gradients."""

import legacy
import numpy as np
import pytest
import reference
import torch
from conftest import close
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tolerance import network_rounding

import relmo
from relmo.formats import ModelContents
from relmo.model import bilm as bilm_module
from relmo.model.bilm import BiLm
from relmo.model.scalar_mix import ScalarMix
from relmo.presets import read_preset
from relmo.text.characters import ByteCharacters

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SENTENCES = st.lists(
    st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=7), min_size=1, max_size=4
)


@QUICK
@given(legacy.options_strategy(), SENTENCES, st.integers(0, 2**32))
def test_all_layers_equal_the_oracle(tmp_path_factory, options, sentences, seed):
    tensors = legacy.random_bilm_tf(np.random.default_rng(seed), options)
    folder = tmp_path_factory.mktemp("model")
    options_path, weights_path = legacy.write_bilm_tf(folder, options, tensors)
    model = relmo.load(options=options_path, weights=weights_path)
    found = model.embed(sentences, layers="all")
    model.bilm.double()
    precise = model.bilm(model.batch(sentences)).without_boundaries()
    for i, sentence in enumerate(sentences):
        expected, _ = reference.layers(options, tensors, sentence)
        n = len(sentence)
        assert np.isfinite(expected).all()
        assert close(precise.layers[:, i, :n].detach().numpy(), expected)
        assert not precise.layers[:, i, n:].any()
        # Projections of random weights enlarge what comes in up to fourfold.
        atol = network_rounding(model.config, n, scale=4 * max(1, np.abs(expected).max()))
        assert close(found[i], expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("original", 93_600_848), ("medium", 28_027_728), ("small", 13_593_296)],
)
def test_published_sizes(preset, parameters):
    with torch.device("meta"):
        bilm = BiLm(read_preset(preset).model)
    contents = ModelContents(bilm.config, bilm.state_dict(), "a test")
    assert contents.n_parameters == parameters


def test_windows_change_nothing(tiny, monkeypatch):
    sentences = [["a"] * n for n in (9, 1, 30, 4)]
    whole = tiny.bilm(tiny.batch(sentences))
    monkeypatch.setattr(bilm_module, "WINDOW_TOKENS", 5)
    cut = tiny.bilm(tiny.batch(sentences))
    bounds = {"rtol": 0, "atol": network_rounding(tiny.config, 30)}
    torch.testing.assert_close(cut.layers, whole.layers, **bounds)
    torch.testing.assert_close(cut.state.h, whole.state.h, **bounds)
    torch.testing.assert_close(cut.state.c, whole.state.c, **bounds)


def test_state_carries_a_text_from_batch_to_batch(tiny):
    """Two halves with state carried are the whole, for the forward direction."""
    ids = ByteCharacters().encode(["a", "b", "c"])
    x = tiny.bilm.encoder(ids)
    packing = tiny.batch([["a"]]).packing  # three tokens
    index = torch.tensor([0, 1, 2])
    first, state = tiny.bilm.contextualize(x, index, packing)
    second, _ = tiny.bilm.contextualize(x, index, packing, state)
    double = tiny.batch([["a"] * 4]).packing  # six tokens
    both, _ = tiny.bilm.contextualize(x, index.repeat(2), double)
    dim = both.shape[-1] // 2
    found, expected = torch.cat([first, second], 1)[..., :dim], both[..., :dim]
    torch.testing.assert_close(found, expected, rtol=0, atol=network_rounding(tiny.config, 4))
    assert not torch.allclose(first, second)


def test_trimmed_padding_is_never_missed(tiny):
    """Short words alone, and beside one that fills every character."""
    scheme = ByteCharacters()
    words = ["", "a", "ab", "x" * 47, "x" * 48, "x" * 60, "é" * 24]
    together = tiny.bilm.encoder(scheme.encode(words))
    for i, word in enumerate(words):
        alone = tiny.bilm.encoder(scheme.encode([word]))[0]
        torch.testing.assert_close(
            alone, together[i], rtol=0, atol=network_rounding(tiny.config, 0)
        )


def test_gradients_reach_every_parameter_through_the_mix(tiny):
    mix = ScalarMix(3, layer_norm=True)
    output = tiny.bilm(tiny.batch([["a", "b"], ["c", "d", "e"]])).without_boundaries()
    mix(output.layers, output.mask).square().sum().backward()
    # The last output of a direction sees everything; character 0 stands for no token.
    for name, parameter in [*tiny.bilm.named_parameters(), *mix.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_fine_tuning_changes_weights_and_frozen_ones_stay(tiny_contents):
    for frozen in (True, False):
        model = relmo.Model(tiny_contents)
        model.bilm.requires_grad_(not frozen)
        mix = ScalarMix(3)
        head = torch.nn.Linear(32, 2)
        parameters = [*model.bilm.parameters(), *mix.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.5)
        before = {n: p.detach().clone() for n, p in model.bilm.named_parameters()}
        vectors_before = model.embed("a b c")
        output = model.bilm(model.batch([["a", "b", "c"]])).without_boundaries()
        loss = torch.nn.functional.cross_entropy(
            head(mix(output.layers, output.mask))[output.mask], torch.tensor([0, 1, 0])
        )
        loss.backward()
        optimizer.step()
        same = [torch.equal(p, before[n]) for n, p in model.bilm.named_parameters()]
        assert all(same) if frozen else not any(same)
        # Token vectors that were remembered belong to the old weights.
        assert np.array_equal(model.embed("a b c"), vectors_before) == frozen
