"""Kinds of vectors to be analysed."""

import numpy as np
import pytest
from conftest import close

from relmo.analysis.sources import joint_source, model_source, open_source, static_source
from relmo.errors import ConfigError
from relmo.features.static import StaticVectors
from relmo.formats import native

SENTENCES = [("the", "cat", "sat"), ("sat",)]
STATIC = StaticVectors(["the", "cat"], np.array([[1, 2], [3, 4]], np.float32))


def test_layers_average_and_context(tiny):
    source = model_source(tiny, contexts=True)
    assert source.names == ("layer 0", "layer 1", "layer 2", "average", "context")
    assert source.layers == range(3)
    for kinds, layers in zip(
        source.embed(SENTENCES), tiny.embed(SENTENCES, layers="all"), strict=True
    ):
        assert np.array_equal(kinds[:3], layers)
        assert close(kinds[3], layers.mean(axis=0))
        # Where a token is not the first, forward has read the one before; backward likewise.
        dim = kinds.shape[2] // 2
        assert close(kinds[4, 1:, :dim], layers[-1, :-1, :dim])
        assert close(kinds[4, :-1, dim:], layers[-1, 1:, dim:])


def test_a_context_does_not_know_its_word(tiny):
    source = model_source(tiny, contexts=True)
    one, other = source.embed([("the", "cat", "sat"), ("the", "zebra", "sat")])
    assert close(one[4, 1], other[4, 1])
    assert not close(one[4, 0], other[4, 0])


def test_static_vectors_and_their_mean():
    source = static_source(STATIC, contexts=True)
    assert source.names == ("static", "static context")
    (words, context), (_, none) = source.embed([("the", "cat"), ()])
    assert words.tolist() == [[1, 2], [3, 4]]
    assert context.tolist() == [[2, 3], [2, 3]]
    assert none.shape == (0, 2)


def test_both(tiny):
    source = joint_source(model_source(tiny), static_source(STATIC))
    assert source.names[-3:] == ("average", "static", "average + static")
    kinds, _ = source.embed(SENTENCES)
    assert [kind.shape[1] for kind in kinds[-3:]] == [
        tiny.config.output_dim,
        2,
        2 + len(kinds[3].T),
    ]
    assert np.array_equal(kinds[-1], np.hstack([kinds[3], kinds[4]]))


def test_opening(tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    (tmp_path / "vectors.txt").write_text("cat 1 0\n")
    model, static = str(tmp_path / "model"), str(tmp_path / "vectors.txt")
    assert open_source(model, None).names[-1] == "average"
    assert open_source(None, static).names == ("static",)
    assert open_source(model, static, contexts=True).names[-1] == "average + static"
    with pytest.raises(ConfigError, match="-m MODEL, --static VECTORS, or both"):
        open_source(None, None)
