"""Occurrences of a word, and the groups that their vectors fall into."""

import builtins
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerance import network_rounding, rounding

from relmo.analysis.groups import group, project, reduce
from relmo.analysis.occurrences import Occurrence, find_occurrences
from relmo.analysis.senses import SenseOptions, group_senses
from relmo.errors import ConfigError, DataError
from relmo.text.tokenize import Token, split_words

TIME = [f"just at present {who} is {what} ." for who in ("he", "she") for what in ("ill", "old")]
GIFT = [
    f"a present from my {who} to {whom} ." for who in ("aunt", "king") for whom in ("you", "me")
]


def blobs(centres, n=40, dim=24, deviation=0.3, seed=0):
    """Vectors around so many centres, far from each other."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((centres, dim))
    return np.concatenate([rng.normal(mean, deviation, (n, dim)) for mean in means])


# ---- occurrences --------------------------------------------------------------------------------


def test_words_are_found_in_any_case_and_only_whole():
    text = ["Present!", "The presents.", "At present, the PRESENT.", "No such word.", "present!"]
    found, n = find_occurrences(text, ["present"], split_words)
    assert [(o.sentence, o.word) for o in found] == [
        ("Present!", Token("Present", 0, 7)),
        ("At present, the PRESENT.", Token("present", 3, 10)),
        ("At present, the PRESENT.", Token("PRESENT", 16, 23)),
        ("present!", Token("present", 0, 7)),
    ]
    assert n == 4
    assert find_occurrences(text, ["present", "presents"], split_words)[1] == 5


def test_a_sentence_that_comes_twice_is_taken_once():
    assert find_occurrences(["a b .", "b c", "a b ."], ["b"], split_words)[1] == 2


def test_more_than_the_limit_are_chosen_from_the_whole_text():
    text = [f"word {i}" for i in range(4000)]
    found, n = find_occurrences(iter(text), ["word"], split_words, limit=200, seed=1)
    numbers = [int(o.tokens[1].text) for o in found]
    assert (len(numbers), n) == (200, 4000)
    assert numbers == sorted(numbers)
    assert np.histogram(numbers, bins=4, range=(0, 4000))[0].min() > 25
    again, _ = find_occurrences(text, ["word"], split_words, limit=200, seed=1)
    other, _ = find_occurrences(text, ["word"], split_words, limit=200, seed=2)
    assert found == again != other


def test_sentences_without_the_word_are_not_tokenised():
    seen = []
    find_occurrences(
        ["a cat", "a dog"], ["CAT"], lambda text: seen.append(text) or split_words(text)
    )
    assert seen == ["CAT", "a cat"]


@given(
    before=st.text("ab \t\x1b", max_size=40),
    after=st.text("ab \n\x00", max_size=40),
    n=st.integers(1, 50),
)
def test_a_snippet_is_a_piece_of_the_sentence_around_the_word(before, after, n):
    start, end = len(before), len(before) + 4
    occurrence = Occurrence(f"{before}WORD{after}", (Token("WORD", start, end),), 0)
    left, word, right = occurrence.snippet(n)
    assert word == "WORD"
    assert len(left) <= n + 1
    assert len(right) <= n + 1
    clean = " ".join("".join(c if c.isprintable() else " " for c in before).split())
    assert clean.endswith(left.lstrip("…").strip())
    assert (left + right).isprintable()
    if n > len(before):  # there is room for all of it
        assert left.strip() == clean


def test_snippets_are_cut_between_words_where_there_are_any():
    (o,), _ = find_occurrences(["all the king's men and horses came"], ["men"], split_words)
    assert o.snippet(100) == ("all the king's ", "men", " and horses came")
    assert o.snippet(9) == ("…king's ", "men", " and…")
    han = "却说宝玉看罢"
    (o,), _ = find_occurrences([f"{han}因笑道"], ["看"], split_words)
    assert o.snippet(4) == ("…宝玉", "看", "罢因…")


# ---- groups -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_number_of_groups_is_found(n):
    labels = group(reduce(blobs(n)))
    assert labels.max() + 1 == n
    assert all(len(set(labels[i * 40 : (i + 1) * 40])) == 1 for i in range(n))


@pytest.mark.slow
def test_one_long_cloud_is_one_group():
    x = np.random.default_rng(3).normal(size=(150, 24)) * np.geomspace(10, 0.1, 24)
    assert group(reduce(x)).max() == 0


def test_a_number_may_be_asked_for_and_the_largest_is_first():
    x = np.concatenate([blobs(1, n=10, seed=1), blobs(1, n=30, seed=2), blobs(1, n=20, seed=3)])
    labels = group(reduce(x), 3)
    assert np.bincount(labels).tolist() == [30, 20, 10]
    assert group(reduce(x), 2).max() == 1
    with pytest.raises(DataError, match=r"Cannot make 61 groups of 60 .* Ask for fewer"):
        group(reduce(x), 61)


def test_vectors_that_are_all_the_same():
    x = np.ones((8, 24), np.float32)
    assert group(reduce(x)).tolist() == [0] * 8
    assert project(reduce(x)).shape == (8, 2)
    with pytest.raises(DataError, match="layer 0 knows no context"):
        group(reduce(x), 2)


@pytest.mark.parametrize("n", [20, pytest.param(40, marks=pytest.mark.slow)])  # 40: by t-SNE
def test_points_of_groups_lie_apart(n):
    x = reduce(blobs(3, n))
    labels = group(x, 3)
    points = project(x)
    centres = np.stack([points[labels == i].mean(axis=0) for i in range(3)])
    nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == labels).all()
    assert np.array_equal(points, project(x))


# ---- senses -------------------------------------------------------------------------------------


def test_two_meanings_are_told_apart(tiny):
    found = group_senses(tiny, ["present"], TIME + GIFT, SenseOptions(n_senses=2))
    assert found.n_found == len(found.occurrences) == 8
    assert {frozenset(s.members) for s in found.senses} == {
        frozenset(range(4)),
        frozenset(range(4, 8)),
    }
    by_first = {min(sense.members): sense for sense in found.senses}
    assert {"just", "at"} <= set(by_first[0].words)
    assert {"a", "from"} <= set(by_first[4].words)
    assert not {"present", "."} & {word for sense in found.senses for word in sense.words}
    assert found.points.shape == (8, 2)
    assert found.summary == "8 occurrences in 2 groups"
    again = group_senses(tiny, ["present"], TIME + GIFT, SenseOptions(n_senses=2))
    assert json.dumps(found.as_dict()) == json.dumps(again.as_dict())


def test_the_vectors_are_those_of_the_layer(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr("relmo.analysis.senses.reduce", lambda x: seen.append(x) or reduce(x))
    text = ["a cat saw a cat .", "a cat ran", "the cat"]
    group_senses(tiny, ["cat"], text, SenseOptions(layers=1))
    group_senses(tiny, ["cat"], text)
    one, two, three = tiny.embed(text, layers="all")
    expected = np.stack([one[:, 1], one[:, 4], two[:, 1], three[:, 1]])  # (N, layers, D)
    assert np.array_equal(seen[0], expected[:, 1])
    assert np.allclose(seen[1], expected[:, 1:].mean(axis=1), atol=rounding(2, scale=5))


def test_beginnings_of_sentences_are_no_group_of_their_own(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr("relmo.analysis.senses.reduce", lambda x: seen.append(x) or reduce(x))
    inside, first = [f"so cat {i}" for i in range(4)], [f"' Cat {i}" for i in range(5)]
    group_senses(tiny, ["cat"], inside + first)
    bound = network_rounding(tiny.config, 3)
    assert np.allclose(seen[0][:4].mean(axis=0), seen[0][4:].mean(axis=0), atol=bound)
    before = tiny.embed(inside, layers=[1, 2])
    assert np.allclose(seen[0][:4], [x.mean(axis=0)[1] for x in before], atol=bound)


def test_examples_differ_from_each_other(tiny):
    text = [*(f"{i} so at present we do not go {i} {i}" for i in range(5)), "a present for you"]
    found = group_senses(tiny, ["present"], text, SenseOptions(n_senses=1))
    shown = [found.occurrences[i].nearby(1) for i in found.examples(found.senses[0], 5)]
    assert len(shown) == 2


def test_one_group_is_named_by_what_is_near(tiny):
    fill = list("klmnopqrstuv")
    turns = [[*fill[i:], *fill[:i]] for i in range(12)]
    text = [" ".join([*turn, "at", "present", "we", *turn]) for turn in turns]
    (sense,) = group_senses(tiny, ["present"], text, SenseOptions(n_senses=1)).senses
    assert set(sense.words[:2]) == {"at", "we"}


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["gone"], {}, r"gone occurs no times .* expected 4 or more"),
        (["just", "gone"], {"limit": 3}, "limit is 3; expected 4"),
        (["aunt"], {}, "aunt occurs 2 times"),
        (["my aunt"], {}, r"\['my', 'aunt'\] of 'my aunt'; expected one token"),
        (["present"], {"layers": "all"}, "layers is 'all'; one vector per token"),
        (["present"], {"layers": 7}, "layers is 7; choose"),
        (["present"], {"n_senses": 0}, "n_senses is 0; expected 1 or more"),
        (["present"], {"seed": -1}, "seed is -1; expected a number from 0 to 4294967295"),
        (["present"], {"seed": 2**32}, "seed is 4294967296"),
        ([], {}, "no word to look for"),
        (["present"], {"n_senses": 9}, "Cannot make 9 groups of 8 occurrences"),
    ],
)
def test_mistakes(tiny, words, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        group_senses(tiny, words, TIME + GIFT, SenseOptions(**options))


def test_without_scikit_learn_it_says_what_to_install(tiny, monkeypatch):
    real = builtins.__import__

    def importing(name, *rest):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ConfigError, match=r"pip install 'relmo\[senses\]'"):
        group_senses(tiny, ["present"], iter(()))
