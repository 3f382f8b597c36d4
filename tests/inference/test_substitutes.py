"""Words that fit in the place of another, against scoring every sentence that they would make."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import close
from tolerance import network_rounding

from relmo.errors import ConfigError
from relmo.formats import ModelContents, native
from relmo.formats.contents import Softmax
from relmo.inference.model import Model
from relmo.inference.substitutes import find_substitutes, substitutes
from relmo.model.bilm import BiLm
from relmo.presets import read_preset
from relmo.text.marks import MarkedSentence
from relmo.text.vocabulary import SPECIAL, Vocabulary

WORDS = ("the", "a", "cat", "dog", "sat", "ran", ".")
SENTENCE = ("the", "cat", "sat", ".")


@pytest.fixture(scope="module")
def contents():
    torch.manual_seed(3)
    config = read_preset("tiny").model.model_copy(update={"tokenizer": "whitespace"})
    dim, vocabulary = config.lstm.projection_dim, Vocabulary((*SPECIAL, *WORDS))
    bilm = BiLm(config)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(2)
    softmax = Softmax(torch.randn(len(vocabulary), dim) * 3, torch.randn(len(vocabulary)))
    tensors = bilm.state_dict()
    return ModelContents(config, tensors, "a test", vocabulary=vocabulary, softmax=softmax)


@pytest.fixture(scope="module")
def scorer(contents):
    return Model(contents)


@pytest.mark.parametrize("place", range(4))
def test_as_if_every_word_had_been_tried(scorer, contents, place):
    found = find_substitutes(scorer, MarkedSentence(SENTENCE, place), k=100)
    tried = [(*SENTENCE[:place], word, *SENTENCE[place + 1 :]) for word in WORDS]
    scored = dict(zip(WORDS, scorer.score(tried), strict=True))
    assert {substitute.word for substitute in found} == set(WORDS)
    bound = network_rounding(contents.config, 4, scale=20)  # logits are below that
    for substitute in found:
        expected = scored[substitute.word]
        assert close(substitute.forward, expected.forward[place], 0, bound)
        assert close(substitute.backward, expected.backward[place], 0, bound)
        assert substitute.score == substitute.forward + substitute.backward


def test_the_best_come_first_and_shares_are_shares(scorer):
    found = find_substitutes(scorer, MarkedSentence(SENTENCE, 1), k=100)
    scores = [substitute.score for substitute in found]
    assert scores == sorted(scores, reverse=True)
    assert math.isclose(sum(substitute.share for substitute in found), 1, rel_tol=1e-6)
    assert find_substitutes(scorer, MarkedSentence(SENTENCE, 1), k=3) == found[:3]


def test_the_word_itself_changes_nothing(scorer, contents):
    one = find_substitutes(scorer, MarkedSentence(SENTENCE, 1), k=5)
    other = find_substitutes(scorer, MarkedSentence(("the", "zebra", "sat", "."), 1), k=5)
    bound = network_rounding(contents.config, 4, scale=20)
    assert [s.word for s in one] == [s.word for s in other]
    assert np.allclose([s.score for s in one], [s.score for s in other], atol=bound)


def test_none_is_too_few(scorer):
    with pytest.raises(ConfigError, match="k is 0"):
        find_substitutes(scorer, MarkedSentence(SENTENCE, 1), k=0)


def test_the_verb(run, contents, tiny_contents, tmp_path):
    native.write(contents, tmp_path / "model")
    native.write(tiny_contents, tmp_path / "without")
    text = "the [cat] sat ."
    _, shown, _ = run("substitutes", text, "-m", tmp_path / "model", "-k", 3, "--json")
    answer = json.loads(shown)
    assert answer == substitutes(text, tmp_path / "model", k=3).as_dict()
    assert (answer["tokens"], answer["place"]) == (["the", "cat", "sat", "."], 1)
    found = answer["substitutes"]
    assert [set(word) for word in found] == [{"word", "forward", "backward", "share", "score"}] * 3
    _, shown, _ = run("substitutes", text, "-m", tmp_path / "model", "-k", 3)
    rows = [row.split("\t")[0] for row in shown.splitlines()]
    assert rows == ["word", *(word["word"] for word in found)]
    code, _, said = run("substitutes", text, "-m", tmp_path / "without")
    assert code == 2
    assert "has no softmax" in said
    code, _, said = run("substitutes", "the cat", "-m", tmp_path / "model")
    assert code == 2
    assert "found none" in said
