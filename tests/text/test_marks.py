"""Words marked in their sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import DataError
from relmo.text.marks import parse_marked
from relmo.text.tokenize import split_characters, split_whitespace, split_words


def test_the_mark_is_taken_away():
    marked = parse_marked("Live in the [present], not the past.", split_words)
    assert marked.tokens == ("Live", "in", "the", "present", ",", "not", "the", "past", ".")
    assert marked.place == 3
    assert marked.word == "present"


@pytest.mark.parametrize(
    ("text", "tokenize", "word", "place"),
    [
        ("[The] cat", split_words, "The", 0),
        ("cat [.]", split_words, ".", 1),
        ("a [ b ] c", split_whitespace, "b", 1),
        ("the [the] the", split_words, "the", 1),
        ("宝[玉]来", split_characters, "玉", 1),
        ("he did[n't] go", split_words, "n't", 2),
    ],
)
def test_which_word_is_meant(text, tokenize, word, place):
    marked = parse_marked(text, tokenize)
    assert (marked.word, marked.place) == (word, place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no mark", "found none"),
        ("[two] [marks]", "found 2"),
        ("an [] empty one", "splits as 'nothing'"),
        ("[ ] blank", "splits as 'nothing'"),
        ("in [New York] today", "splits as 'New York'"),
        ("two [cat]s", "splits as 'cats'"),
        ("open [ only", "found none"),
        ("", "found none"),
    ],
)
def test_marks_that_mean_nothing(text, said):
    with pytest.raises(DataError, match=said):
        parse_marked(text, split_words)


@given(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=8), st.data())
def test_any_word_can_be_marked(words, data):
    place = data.draw(st.integers(0, len(words) - 1))
    text = " ".join(f"[{w}]" if i == place else w for i, w in enumerate(words))
    marked = parse_marked(text, split_whitespace)
    assert marked.tokens == tuple(words)
    assert marked.place == place
