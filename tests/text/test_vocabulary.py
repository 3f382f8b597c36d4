"""Vocabularies: as the older programs wrote them, built from a text, and given for training."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError, FormatError
from relmo.text import vocabulary as vocabulary_module
from relmo.text.vocabulary import (
    SPECIAL,
    Vocabulary,
    build_vocabulary,
    check_order,
    parse_vocabulary,
    read_vocabulary,
)


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


# ---- built --------------------------------------------------------------------------------------


def test_built_by_falling_count_then_by_word():
    counts = {"b": 2, "a": 2, "the": 9, "rare": 1, "<UNK>": 50, "<S>": 3}
    assert build_vocabulary(counts, 100, 1).words == (*SPECIAL, "the", "a", "b", "rare")
    assert build_vocabulary(counts, 100, 2).words == (*SPECIAL, "the", "a", "b")
    assert build_vocabulary(counts, 5, 1).words == (*SPECIAL, "the", "a")
    assert build_vocabulary(counts, 3, 1).words == SPECIAL


@given(counts=st.dictionaries(st.text(max_size=3), st.integers(1, 5)), seed=st.integers(0, 9))
def test_the_order_of_counts_does_not_matter(counts, seed):
    items = list(counts.items())
    random.Random(seed).shuffle(items)
    assert build_vocabulary(dict(items), 8, 2) == build_vocabulary(counts, 8, 2)


# ---- given --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    def write(*words):
        path = tmp_path / "words.txt"
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        return path

    return write


def test_reads_a_vocabulary(file):
    assert read_vocabulary(file(*SPECIAL, "the", "!!!MAXTERMID", "a")).words[3:] == ("the", "a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SPECIAL, "the", "a", "the"), r"words\.txt: line 6 repeats 'the' of line 4"),
        ((*SPECIAL, "the", "", "a"), r"words\.txt: line 5 is empty"),
        ((*SPECIAL, "the", " "), r"words\.txt: line 5 is empty"),
        (("the", "a"), r"words\.txt begins with \['the', 'a'\]"),
        ((), r"words\.txt begins with \[\]"),
    ],
)
def test_refuses_what_would_train_badly(file, words, message):
    with pytest.raises(FormatError, match=message):
        read_vocabulary(file(*words))


def test_size_is_bounded(file, monkeypatch):
    path = file(*SPECIAL, "the", "a")
    monkeypatch.setattr(vocabulary_module, "MAX_WORDS", 4)
    with pytest.raises(FormatError, match="has 5 words; at most 4"):
        read_vocabulary(path)
    monkeypatch.setattr(vocabulary_module, "_MAX_BYTES", 9)
    with pytest.raises(FormatError, match="larger than 9 bytes"):
        read_vocabulary(path)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: No such file"):
        read_vocabulary(tmp_path / "none.txt")


def zipf(n, seed):
    """Counts of a text: word i occurs about 1/i as often as the first, some twice as often."""
    names = random.Random(0).sample(range(10**6), n)
    noise = random.Random(seed)
    return {f"w{x:06}": round(3 * n / i * 2 ** noise.gauss(0, 1)) for i, x in enumerate(names, 1)}


@pytest.mark.parametrize("n", [100, 1000, 20_000])
def test_order_of_this_or_of_another_text_passes(n):
    counts = zipf(n, 1)
    for other in (counts, zipf(n, 2), zipf(n, 3)):
        check_order(build_vocabulary(other, n, 1), counts, "words.txt")
    few = dict(list(counts.items())[:: n // 10])  # a short text knows few of the words
    check_order(build_vocabulary(zipf(n, 4), n, 1), few, "words.txt")


def shuffled(words):
    return random.Random(5).sample(words, len(words))


@pytest.mark.parametrize("n", [100, 1000, 20_000])
@pytest.mark.parametrize("order", [sorted, shuffled, lambda w: w[::-1], lambda w: sorted(w)[::-1]])
def test_other_orders_are_refused(n, order):
    counts = zipf(n, 1)
    words = order(list(build_vocabulary(counts, n, 1).words[3:]))
    with pytest.raises(
        ConfigError, match=r"words\.txt is not sorted by falling frequency: line \d"
    ):
        check_order(Vocabulary((*SPECIAL, *words)), counts, "words.txt")


def test_the_message_shows_what_is_wrong():
    counts = {"aardvark": 2, "of": 500, "the": 1000}
    with pytest.raises(
        ConfigError,
        match=r"line 4 is 'aardvark', which the text has 2 times, and line 6 is 'the', which it "
        r"has 1,000 times\. .*leave it out",
    ):
        check_order(Vocabulary((*SPECIAL, "aardvark", "of", "the")), counts, "words.txt")


def test_words_that_are_equally_frequent_are_in_order():
    check_order(Vocabulary((*SPECIAL, "a", "b", "c")), {"a": 3, "b": 3, "c": 3}, "words.txt")


def test_a_vocabulary_of_another_language():
    with pytest.raises(ConfigError, match=r"None of the 4 words of words\.txt occurs in the text"):
        check_order(Vocabulary((*SPECIAL, "le")), {"the": 3, "<UNK>": 1}, "words.txt")
