"""Reading order, windows and groups of sentences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError
from relmo.text.batch import Packing, build_batch, plan_batches
from relmo.text.characters import ByteCharacters
from relmo.text.lexicon import LexiconCharacters, build_lexicon

LENGTHS = st.lists(st.integers(1, 12), max_size=9)


def read(packing, tokens):
    """What each row reads, following the packed places step by step."""
    rows = [[] for _ in packing.lengths]
    place = 0
    for size in packing.sizes:
        for row in range(size):
            rows[row].append(int(tokens[place]))
            place += 1
    assert place == len(tokens)
    return rows


@given(LENGTHS)
def test_every_sentence_is_read_in_order_in_both_directions(lengths):
    packing = Packing(lengths)
    assert packing.sizes == sorted(packing.sizes, reverse=True)
    flat = iter(range(sum(lengths)))
    sentences = [[next(flat) for _ in range(n)] for n in lengths]
    forward = read(packing, packing.forward)
    backward = read(packing, packing.backward)
    for row, sentence in enumerate(packing.order.tolist()):
        assert forward[row] == sentences[sentence]
        assert backward[row] == sentences[sentence][::-1]


@given(LENGTHS, st.integers(1, 40))
def test_windows_cover_all_steps_within_the_limit(lengths, most):
    packing = Packing(lengths)
    steps, places = [], []
    for window, rows in packing.windows(most):
        assert sum(packing.sizes[window]) == rows.stop - rows.start
        assert rows.stop - rows.start <= most or window.stop - window.start == 1
        steps += range(window.start, window.stop)
        places += range(rows.start, rows.stop)
    assert steps == list(range(len(packing.sizes)))
    assert places == list(range(sum(lengths)))


@given(LENGTHS, st.integers(1, 40))
def test_groups_hold_every_sentence_once_within_the_budget(lengths, budget):
    groups = plan_batches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert sum(lengths[i] for i in group) <= budget or len(group) == 1
    ordered = [lengths[i] for group in groups for i in group]
    assert ordered == sorted(ordered, reverse=True)


def test_batch_holds_each_distinct_token_once_and_adds_boundaries():
    batch = build_batch([["a", "b", "a"], []], ByteCharacters())
    assert batch.ids.characters.shape == (4, 50)  # <S> a b </S>
    assert batch.index.tolist() == [0, 1, 2, 1, 3, 0, 3]
    assert batch.packing.lengths.tolist() == [5, 2]
    assert batch.tokens == ("<S>", "a", "b", "</S>")
    assert batch.numbers.tolist() == [0, 1]


def test_a_batch_of_character_ids_is_that_of_the_tokens():
    scheme = ByteCharacters()
    sentences = [["the", "cat", "the"], [], ["cat"]]
    ids = [scheme.encode(sentence).characters for sentence in sentences]
    by_ids, by_tokens = build_batch(ids, scheme), build_batch(sentences, scheme)
    assert by_ids.tokens is None
    assert len(by_ids.ids.characters) == len(by_tokens.ids.characters) == 4
    read = [batch.ids.characters[batch.index].tolist() for batch in (by_ids, by_tokens)]
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([np.zeros((2, 7), np.int64)], "this model reads integers"),
        ([np.zeros((2, 50))], "this model reads integers"),
        ([np.zeros(50, np.int64)], "or none"),
        ([np.zeros((2, 50), np.int64), ["a"]], "or none"),
        ([np.full((2, 50), 262)], "go from 262 to 262; this model knows those from 0 to 261"),
        ([np.full((2, 50), -1)], "go from -1"),
    ],
)
def test_character_ids_that_do_not_fit(sentences, message):
    with pytest.raises(DataError, match=message):
        build_batch(sentences, ByteCharacters())


def test_a_model_of_words_cannot_be_given_character_ids():
    words = LexiconCharacters(build_lexicon({"a": 1}, 20, 9))
    with pytest.raises(ConfigError, match="give tokens"):
        build_batch([np.zeros((2, 50), np.int64)], words)
