"""Prose to sentences, and one sentence per line."""

import random
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError
from relmo.text import sentences
from relmo.text.sentences import read_sentences

pytest.importorskip("sentencex", reason="prose needs relmo[sentences]")


@pytest.fixture
def split(tmp_path):
    def run(text, language="en", lines=False):
        path = tmp_path / "text.txt"
        path.write_text(text, encoding="utf-8")
        return list(read_sentences(str(path), lines=lines, language=language))

    return run


def test_one_sentence_a_line(split):
    assert split("Mr. A. B.\n\n  c \n \u3000\nd", lines=True) == ["Mr. A. B.", "c", "d"]
    assert split("", lines=True) == []


WRAPPED = """CHAPTER I

Mr. Tulkinghorn had been here for a
long time. "You have got it," said Mrs.
Chadband. The drawing-
room was cold, and so\u00ad
met the wind--
he said.

A new one
"""


def test_wrapped_lines_make_paragraphs(split):
    assert split(WRAPPED) == [
        "CHAPTER I",
        "Mr. Tulkinghorn had been here for a long time.",
        '"You have got it," said Mrs. Chadband.',
        "The drawing-room was cold, and somet the wind-- he said.",
        "A new one",
    ]
    assert split(WRAPPED.replace("\n", "\r\n")) == split(WRAPPED)


def test_a_paragraph_a_line(split):
    paragraphs = [
        "A title without a mark",
        "One is here. Two is here!",
        "He asked: “Is it so?”",
        "Some lines are much longer than a page is wide, and go on and on " + "and on " * 20,
        "It ends.",
    ]
    found = split("\n".join(paragraphs))
    assert found[:4] == [paragraphs[0], "One is here.", "Two is here!", paragraphs[2]]
    assert found[-1] == "It ends."
    assert len(found) == 6


@pytest.mark.parametrize("text", ["", "\n\n", " \n\t\n\u3000\n"])
def test_nothing(split, text):
    assert split(text) == []


def test_chinese(split):
    text = "他说：“你好。”她笑了！真的吗？『走吧。』「好。」是的。"
    expected = ["他说：“你好。”", "她笑了！", "真的吗？", "『走吧。』", "「好。」", "是的。"]
    assert split(text, "zh") == expected
    wrapped = "\n".join(text[i : i + 5] for i in range(0, len(text), 5))
    assert split(wrapped, "zh") == expected


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["我们", "在"], "我们在"),
        (["说：", "“你好”", "了"], "说：“你好”了"),
        (["用 Python", "写"], "用 Python 写"),
        (["カタ", "カナ"], "カタカナ"),
        (["ภาษา", "ไทย"], "ภาษาไทย"),
        (["한국어", "문장"], "한국어 문장"),
        (["well-", "known"], "well-known"),
        (["a -", "b"], "a - b"),
        (["1914-", "1918"], "1914- 1918"),
        (["été", "à Paris"], "été à Paris"),
    ],
)
def test_what_stands_between_wrapped_lines(lines, joined):
    assert sentences._joined(lines) == joined


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=30))
def test_no_character_is_lost(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "prose.txt"
    path.write_bytes("\n".join(lines).encode())
    found = "".join(read_sentences(str(path), lines=False))
    kept = "".join("\n".join(lines).removeprefix("\ufeff").split())
    assert "".join(found.split()).replace("\u00ad", "") == kept.replace("\u00ad", "")


@pytest.mark.slow
@pytest.mark.parametrize("between", [" ", "\n", ""])
def test_a_huge_paragraph_takes_bounded_memory(tmp_path, between):
    path = tmp_path / "huge.txt"
    words = random.Random(1).choices([*["longer-word"] * 6, "Another one.", "文字。"], k=150_000)
    path.write_text(between.join(words), encoding="utf-8")  # 1.5 MB, no paragraph ends
    tracemalloc.start()
    try:
        n = sum(len(s.replace(" ", "")) for s in read_sentences(str(path), lines=False))
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()
    assert n == sum(len(word.replace(" ", "")) for word in words)


def test_lone_surrogates_do_no_harm(tmp_path):
    path = tmp_path / "odd.txt"
    path.write_bytes(rb"One \ud800 here. Two here.")
    found = list(read_sentences(str(path), lines=False, encoding="unicode_escape"))
    assert found == ["One ? here.", "Two here."]


@pytest.mark.parametrize("language", ["english", "", "EN", "e", "zh_CN", "xx", "qq-DE"])
def test_unknown_language(split, language):
    with pytest.raises(ConfigError, match=f"Unknown language '{language}'.*such as en"):
        split("text", language)


def test_without_sentencex(split, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ConfigError, match=r"'relmo\[sentences\]'.*one sentence per line"):
        split("One. Two.")
    assert split("One. Two.", lines=True) == ["One. Two."]


def test_bad_bytes_are_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"latin\.txt, line 2: found the byte 0xe9"):
        list(read_sentences(str(path), lines=False))
    assert list(read_sentences(str(path), lines=True, errors="ignore")) == ["fine", "caf"]
