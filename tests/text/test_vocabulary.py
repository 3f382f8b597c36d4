"""Vocabularies as the older programs wrote them."""

import pytest

from relmo.errors import FormatError
from relmo.text.vocabulary import Vocabulary, parse_vocabulary


def test_reads_words_in_order_and_skips_the_relic():
    found = parse_vocabulary("<S>\n</S>\n<UNK>\nthe\n!!!MAXTERMID\nçok\u2028\n".encode(), "v.txt")
    assert found.words == ("<S>", "</S>", "<UNK>", "the", "çok\u2028")
    assert found.number("the") == 3
    assert found.number("never seen") == 2
    assert parse_vocabulary(found.to_text().encode(), "v.txt") == found


def test_windows_line_ends_and_byte_order_mark():
    found = parse_vocabulary(b"\xef\xbb\xbf<S>\r\n</S>\r\n<UNK>\r\nthe\r\n", "v.txt")
    assert found == Vocabulary(("<S>", "</S>", "<UNK>", "the"))


def test_not_utf8_names_the_line():
    with pytest.raises(FormatError, match=r"v\.txt: line 4 is not UTF-8 \(byte 0xe9\)"):
        parse_vocabulary(b"<S>\n</S>\n<UNK>\ncaf\xe9\n", "v.txt")


def test_special_words_come_first():
    with pytest.raises(FormatError, match="falling frequency"):
        parse_vocabulary(b"the\n<S>\n</S>\n", "v.txt")
