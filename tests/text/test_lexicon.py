"""Ids of characters and words by their place in a lexicon, and where lexicons come from."""

import pytest

from relmo.errors import ConfigError
from relmo.text.lexicon import CHARACTER_MARKS, Lexicon, LexiconCharacters, build_lexicon

CHARACTERS = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", "a", "b")


def test_lexicon_of_characters_and_words():
    lexicon = Lexicon(CHARACTERS, ("<oov>", "<bos>", "<eos>", "ab"))
    characters, words = LexiconCharacters(lexicon, 6).encode(["ab", "az", "<bos>", "aabba"])
    assert words.tolist() == [3, 0, 1, 0]
    assert characters.tolist() == [
        [4, 6, 7, 5, 3, 3],
        [4, 6, 2, 5, 3, 3],
        [4, 0, 5, 3, 3, 3],
        [4, 6, 6, 7, 7, 5],
    ]


def test_a_long_word_is_cut_before_it_is_looked_up():
    scheme = LexiconCharacters(Lexicon(CHARACTERS, ("<oov>", "<bos>", "<eos>", "aaaa")), 6)
    assert scheme.encode(["aaaab"]).words.tolist() == [3]


def test_lexicon_of_one_kind_only():
    assert LexiconCharacters(Lexicon(CHARACTERS, ())).encode(["a"]).words is None
    assert LexiconCharacters(Lexicon((), ("<oov>",))).encode(["a"]).characters is None


COUNTS = {"曹操": 5, "操": 2, "<oov>": 9, "玄德": 2}


def test_a_lexicon_of_the_most_frequent_characters_and_words():
    # < > o v: 9 each (o twice a word); 操 7, 曹 5, then 德 and 玄 by code point.
    lexicon = build_lexicon(COUNTS, len(CHARACTER_MARKS) + 7, 3)
    assert lexicon.characters == (*CHARACTER_MARKS, "o", "<", ">", "v", "操", "曹", "德")
    assert lexicon.words == ("<oov>", "曹操", "操")


def test_a_lexicon_may_be_smaller_than_allowed_or_empty():
    assert len(build_lexicon(COUNTS, 1000, 0).characters) == len(CHARACTER_MARKS) + 8
    assert build_lexicon(COUNTS, 0, 100) == Lexicon((), ("<oov>", "曹操", "操", "玄德"))


def test_a_lexicon_without_room():
    with pytest.raises(ConfigError, match="A lexicon of 6 has room for its marks alone: <bos>"):
        build_lexicon(COUNTS, 6, 0)
