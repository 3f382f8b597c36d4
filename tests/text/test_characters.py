"""Ids of the published byte scheme, and of lexicons."""

import reference
from hypothesis import given
from hypothesis import strategies as st

from relmo.text.characters import ByteCharacters, Lexicon, LexiconCharacters


def byte_ids(*tokens, max_characters=50):
    return ByteCharacters(max_characters).encode(tokens).characters.numpy()


def test_a_word_spelled_out():
    row = byte_ids("cat")[0].tolist()
    assert row == [259, ord("c") + 1, ord("a") + 1, ord("t") + 1, 260] + [261] * 45


def test_boundaries_are_words_of_one_character():
    begin, end = byte_ids("<S>", "</S>").tolist()
    assert begin == [259, 257, 260] + [261] * 47
    assert end == [259, 258, 260] + [261] * 47


def test_48_bytes_are_kept_and_the_cut_may_split_a_character():
    row = byte_ids("x" * 47 + "é")[0]
    assert row[48] == 0xC3 + 1  # the first byte of é
    assert row[49] == 260
    assert (byte_ids("x" * 48) == byte_ids("x" * 4800)).all()


def test_empty_token():
    assert byte_ids("")[0].tolist() == [259, 260] + [261] * 48


@given(st.lists(st.text(max_size=70), max_size=5), st.integers(3, 60))
def test_same_ids_as_the_oracle(tokens, max_characters):
    for row, token in zip(byte_ids(*tokens, max_characters=max_characters), tokens, strict=True):
        assert row.tolist() == reference.character_ids(token, max_characters).tolist()


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
