"""Ids of the published byte scheme."""

import reference
from hypothesis import given
from hypothesis import strategies as st

from relmo.text.characters import ByteCharacters


def byte_ids(*tokens, max_characters=50):
    return ByteCharacters(max_characters).encode(tokens).characters


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
