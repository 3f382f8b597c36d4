"""Features of models and of functions."""

import numpy as np
import pytest
import torch
from conftest import close

import relmo
from relmo.errors import ConfigError
from relmo.features.live import FunctionFeatures, LiveFeatures, open_features
from relmo.features.static import StaticVectors
from relmo.features.store import FeatureStore

SENTENCES = [("the", "cat", "sat"), (), ("sat",)]


def test_a_models_layers(tiny):
    features = LiveFeatures(tiny, "tiny")
    assert (features.n_layers, features.dim) == (3, 32)
    layers = features.batch(SENTENCES)
    assert layers.values.shape == (3, 3, 3, 32)
    assert layers.mask.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    for row, expected in enumerate(tiny.embed(SENTENCES, layers="all")):
        assert close(layers.values[:, row, : expected.shape[1]], expected, atol=1e-5)
    with_boundaries = features.batch(SENTENCES, boundaries=True)
    assert with_boundaries.mask.sum(dim=1).tolist() == [5, 2, 3]
    assert torch.equal(with_boundaries.without_boundaries().values, layers.values)


def test_no_gradient_and_the_token_cache(tiny, monkeypatch):
    features = LiveFeatures(tiny)
    first = features.batch(SENTENCES)
    assert not first.values.requires_grad
    monkeypatch.setattr(tiny.bilm.encoder, "forward", None)  # must not be needed again
    assert torch.equal(features.batch(SENTENCES).values, first.values)


def test_the_identity_is_that_of_the_weights(tiny, tiny_contents):
    features = LiveFeatures(tiny)
    before = features.identity
    assert before == tiny.fingerprint == LiveFeatures(relmo.Model(tiny_contents)).identity
    int8 = LiveFeatures(relmo.Model(tiny_contents, precision="int8"))
    assert int8.identity == f"{before}-int8"
    with torch.no_grad():
        next(tiny.bilm.parameters()).add_(1)
    assert features.identity != before


def test_stored_like_any_other(tiny, tmp_path):
    live = LiveFeatures(tiny)
    stored = FeatureStore(tmp_path).open(live, SENTENCES, dtype="float32")
    assert close(stored.batch(SENTENCES).values, live.batch(SENTENCES).values, atol=1e-5)
    rows = stored.rows(SENTENCES)
    assert len(rows) == 4
    flat = stored.batch(SENTENCES).values[:, live.batch(SENTENCES).mask]
    assert torch.equal(stored.tokens(rows), flat)
    assert torch.equal(stored.tokens(rows[::-1].copy()), flat.flip(1))


def test_a_function(tmp_path):
    def embed(batch):
        return [np.array([[[len(t), 1] for t in s]], np.float32).reshape(1, -1, 2) for s in batch]

    features = FunctionFeatures("length", "length", 1, 2, embed)
    layers = features.batch(SENTENCES, boundaries=True)
    assert layers.values[0, 0].tolist() == [[0, 0], [3, 1], [3, 1], [3, 1], [0, 0]]
    assert layers.mask.sum(dim=1).tolist() == [5, 2, 3]
    stored = FeatureStore(tmp_path).open(features, SENTENCES)
    assert torch.equal(stored.batch(SENTENCES).values, features.batch(SENTENCES).values)


def test_opening(tiny, tmp_path):
    (tmp_path / "vectors.txt").write_text("cat 1 0\n")
    tiny.save(tmp_path / "model")
    model, static = open_features(tmp_path / "model", tmp_path / "vectors.txt")
    assert (model.name, static.name) == ("model", "vectors.txt")
    assert isinstance(static, StaticVectors)
    (live,) = open_features(tiny)
    assert live.identity == model.identity
    with pytest.raises(ConfigError, match="give a model, static vectors, or both"):
        open_features(None)


def test_a_name_is_not_a_loaded_model():
    with pytest.raises(ConfigError, match=r"Expected a loaded model, found 'en'.*relmo\.load"):
        LiveFeatures("en")
