"""Kinds of vectors to be analysed."""

import numpy as np
import torch
from conftest import close

from relmo.analysis.kinds import Kinds, contexts_of
from relmo.features.live import FunctionFeatures, LiveFeatures
from relmo.features.static import StaticVectors

SENTENCES = [("the", "cat", "sat"), ("sat",)]
STATIC = StaticVectors(["the", "cat"], np.array([[1, 2], [3, 4]], np.float32), "two")
OTHER = FunctionFeatures("other", "x", 1, 1, lambda batch: [np.ones((1, len(s), 1)) for s in batch])


def views_of(features, sentences=SENTENCES, contexts=False):
    kinds = Kinds(features, contexts=contexts)
    batches = [f.batch(sentences, boundaries=True) for f in features]
    around = [contexts_of(batch) for batch in batches] if contexts else []
    found = kinds.views([batch.without_boundaries().values for batch in batches], around)
    assert len(found) == len(kinds.names)
    return kinds, [view.numpy() for view in found]


def test_layers_average_and_context(tiny):
    kinds, found = views_of([LiveFeatures(tiny)], contexts=True)
    assert kinds.names == ("layer 0", "layer 1", "layer 2", "average", "context")
    assert kinds.mixes == {"mix": (0, 1, 2)}
    for row, layers in enumerate(tiny.embed(SENTENCES, layers="all")):
        n, dim = layers.shape[1], layers.shape[2] // 2
        assert close([view[row, :n] for view in found[:3]], layers, atol=1e-5)
        assert close(found[3][row, :n], layers.mean(axis=0), atol=1e-5)
        # Where a token is not the first, forward has read the one before; backward likewise.
        assert close(found[4][row, 1:n, :dim], layers[-1, :-1, :dim], atol=1e-5)
        assert close(found[4][row, : n - 1, dim:], layers[-1, 1:, dim:], atol=1e-5)


def test_a_context_does_not_know_its_word(tiny):
    _, found = views_of(
        [LiveFeatures(tiny)], [("the", "cat", "sat"), ("the", "zebra", "sat")], True
    )
    one, other = found[4]
    assert close(one[1], other[1], atol=1e-5)
    assert not np.allclose(one[0], other[0], atol=1e-3)


def test_static_vectors_and_their_mean():
    kinds, (words, context) = views_of([STATIC], [("the", "cat"), ()], contexts=True)
    assert kinds.names == ("static", "static context")
    assert kinds.mixes == {}
    assert words[0].tolist() == [[1, 2], [3, 4]]
    assert context[0].tolist() == [[2, 3], [2, 3]]
    assert not context[1].any()


def test_a_model_beside_static_vectors(tiny):
    kinds, found = views_of([LiveFeatures(tiny), STATIC])
    assert kinds.names[-3:] == ("average", "static", "average + static")
    assert np.array_equal(found[-1], np.concatenate([found[-3], found[-2]], axis=-1))
    kinds, found = views_of([STATIC, LiveFeatures(tiny), OTHER], contexts=True)
    assert kinds.names[:4] == ("two", "two context", "layer 0", "layer 1")
    assert kinds.names[-4:] == ("other", "other context", "average + two", "average + other")
    assert kinds.mixes == {"mix": (2, 3, 4)}
    assert [view.shape[-1] for view in found[-2:]] == [tiny.config.output_dim + n for n in (2, 1)]


def test_two_models_have_their_names_and_a_mix_each(tiny):
    kinds, found = views_of([LiveFeatures(tiny, "one"), LiveFeatures(tiny, "two"), STATIC])
    assert kinds.names[3:5] == ("one average", "two layer 0")
    assert kinds.names[-1] == "static"  # behind which average would it stand?
    assert kinds.mixes == {"one mix": (0, 1, 2), "two mix": (4, 5, 6)}
    for one, other in zip(found[:4], found[4:8], strict=True):
        assert torch.equal(torch.from_numpy(one), torch.from_numpy(other))
