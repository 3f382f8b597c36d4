"""Views of layers, beside the same computed sentence by sentence."""

import numpy as np
import pytest
import torch
from features.fakes import SENTENCES, FakeFeatures

from relmo.errors import ConfigError


@pytest.fixture
def live():
    return FakeFeatures(dim=8)


def test_boundaries_can_be_taken_away(live):
    found = live.batch(SENTENCES, boundaries=True).without_boundaries()
    expected = live.batch(SENTENCES)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.mask, expected.mask)
    assert found.lengths.tolist() == [len(s) for s in SENTENCES]


def test_means_of_layers(live):
    layers = live.batch(SENTENCES)
    for i, sentence in enumerate(SENTENCES):
        x = live.sentence(sentence, boundaries=False)  # (K, n, D)
        n = len(sentence)
        assert np.allclose(layers.average()[i, :n], x.mean(axis=0), atol=1e-6)
        assert np.allclose(layers.lstm()[i, :n], x[1:].mean(axis=0), atol=1e-6)
        assert not layers.average()[i, n:].any()
        assert not layers.lstm()[i, n:].any()


def test_context_is_what_both_directions_hold_before_they_read_a_token(live):
    found = live.batch(SENTENCES, boundaries=True).context()
    assert found.shape == (len(SENTENCES), max(map(len, SENTENCES)), 8)
    for i, sentence in enumerate(SENTENCES):
        top = live.sentence(sentence, boundaries=True)[-1]  # (n + 2, D)
        for place in range(len(sentence)):
            assert np.array_equal(found[i, place, :4], top[place, :4])
            assert np.array_equal(found[i, place, 4:], top[place + 2, 4:])
        assert not found[i, len(sentence) :].any()


def test_views_that_do_not_exist():
    one = FakeFeatures(n_layers=1).batch(SENTENCES, boundaries=True)
    with pytest.raises(ConfigError, match="no mean of LSTM layers"):
        one.lstm()
    with pytest.raises(ConfigError, match="no context"):
        one.context()
    with pytest.raises(ConfigError, match="have 5 dimensions, expected an even number"):
        FakeFeatures(dim=5).batch(SENTENCES, boundaries=True).context()
