import pickle
import sys
import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relmo.errors import ConfigError
from relmo.text.tokenize import TOKENIZERS, Token, build_tokenizer, split_words

NAMES = ["words", "whitespace", "characters", "chinese"]

# Text in which the rules meet: everything that `words` treats in a way of its own.
PIECES = [
    *"aIAnt1.,:;!?'’\"-_–&/@#%$()<>[]{}`*=~|\\·…",
    *["don't", "it's", "l'", "qu'", "Mr.", "U.S", "http://", "www.", "a@b.co", "0", "nn't", "''"],
    *" \n\t\r\x1c\x1f\x85\xa0\u2003\u2028\u202f\u3000",
    *"\x00\x7f\u00ad\u200b\u200c\u200d\u200e\u2060\ufeff\ufffe\ufe0f\u20e3\u0301\u0600\ud800\udfff",
    *"éßİǅʼא״׳َب٣٫नि्ไ่가ᄀ中〇々𠮷あーアｱﾞ・。「①½²👍🏽👩🇫❤\U000e0067\U0010ffff",
]
ANY_TEXT = st.one_of(
    st.text(st.characters(), max_size=40),
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
)


def tokenizer_or_skip(name):
    if name == "chinese":
        pytest.importorskip("rjieba", reason="needs the extra: pip install 'relmo[chinese]'")
    return build_tokenizer(name)


def words(text):
    return [token.text for token in split_words(text)]


@pytest.mark.parametrize("name", NAMES)
@given(text=ANY_TEXT)
@example(text="\u0600 \u0600\x1c\u0600")  # \X would take the space
@example(text="\ud800中\udfff 文\ud83d\ude00")
@example(text="")
def test_offsets_are_exact_and_nothing_is_lost(name, text):
    tokens = tokenizer_or_skip(name)(text)
    assert "".join(token.text for token in tokens) == "".join(text.split())
    assert all(token.text and text[token.start : token.end] == token.text for token in tokens)
    assert all(a.end <= b.start for a, b in pairwise(tokens))


@given(text=ANY_TEXT)
def test_whitespace_splits_as_str_split_does(text):
    assert [token.text for token in TOKENIZERS["whitespace"](text)] == text.split()


@pytest.mark.parametrize("name", NAMES)
def test_every_unicode_space_separates_and_is_dropped(name):
    tokenize = tokenizer_or_skip(name)
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(spaces) >= 29
    for space in spaces:
        assert tokenize(f"a{space}b{space}") == [Token("a", 0, 1), Token("b", 2, 3)], ascii(space)


# Tokens are written with | between them; spaces of the text stand as they are.
CASES = {
    "clitics": "I| do|n't| know|,| it|'s| John|'s|;| we|'ll| ca|n't| cannot| DO|N'T| I|'M",
    "curly clitics": "wo|n’t| it|’s| they|’re| I|’ve| she|’d| the| dogs|’",
    "stacked clitics": "should|n't|'ve| y'all|'d|'ve",
    "Penn Treebank text stays": "do| n't| it| 's| ``| no| ''| --| ...| 'em| the| '90s| 'tis",
    "whole apostrophes": "o'clock| O'Brien|'s| rock'n'roll| ma'am| c'mon| m'lady| aujourd'hui",
    "quotes": "'|hello|'| \"|hi|\"| ‘|yes|’| “|no|”| «|oui|»",
    "French": "l'|homme| qu'|il| L’|État| c'|est| j’|ai| jusqu'|à| s'|il| n'|y| d'|un",
    "Italian": "dell'|arte| un'|altra| l'|università| c'|è| all'|inizio",
    "apostrophe letters": "п'ять| об’єкт| п\u02bcять| Ankara'da| geht|'s| foto|'s",
    "hyphens": "well-known| mother-in-law|'s| word|--|word| a|–|b| a|—|b| -|x| x|-| e‑mail",
    "numbers": "$|1,234.56| 3.14| 50|%| 3rd| 1990s| 1990|'s| 10:30| 9/11| -|5| 1990|–|95| 1990-95",
    "number marks": "5½| km²| ①| 5|€| 12|°|C| 1,2|,| 3|.| ٣٫١٤| १२३",
    "initials": "J.| R.| R.| Tolkien| and| I|.| He| met| А.| С.| Пушкин|.| Plan| B|.",
    "abbreviations": "U.S.| U.S.A| e.g.|,| 5| p.m.| Ph.D.| etc.|,| etc|...| т.е.| U.K.-based",
    "titles": "Mr.| and| Mrs.| Smith| saw| Dr.|No| in| St.| Louis|,| Nov.| 5|.| Mr",
    "final periods": 'The| end|.| It| is| done|.|"| (|See| it|.|)| Why|?|!| Wow|!!!|',
    "inner marks": "node.js| example.com|/|a| snake_case| AT&T| R&D| a|&|b| and|/|or| col·legi",
    "emphasis": "_|so|_| *|so|*| **|so|**| __|init|__| #|1| C|#| C|++",
    "brackets": "(|(|a|)|)| [|1|]| {|x|}| <|b|>| wait|...|what| no|…| ..| ====",
    "addresses": "see| http://a.org/x_(y)|,| (|https://x.org/?q=1&r=a-b#c|)|.| www.foo.de|!| ftp://f/",
    "not addresses": "http|:|//| www|.| foo|@|bar| @| a|@|b.c",
    "address in quotes": "\"|https://a.org/b|\"| <|http://c.de|>| '|http://d.fr|'| _|http://e.it|_",
    "e-mail": "a.b+c@example.co.uk|.| <|me@x.org|>|,| mailto|:|you@x-y.com|:| A_B@c.io|!",
    "mentions": "@user_1|:| (|@me|)| #tag| #2020vision|,| @you|'s",
    "address in Chinese": "看|https://a.cn/b|。|谢|谢| 信|foo@bar.com|谢| @me|你",
    "emoji": "👩‍👩‍👧|🇫🇷|🇩🇪|👍🏽|ok|❤️|😀|😀| 1️⃣|2️⃣|#️⃣| 🏴\U000e0067\U000e0062\U000e007f|!",
    "combining marks": "cafe\u0301| Việt| Z\u0351\u036b\u0343al|!\u0301| a\u0338|=\u0338|b",
    "invisible": "co\u00adop| می‌خواهم| a|\u200b|b| a\u2060b| \ufeff|x| \x00|\x00",
    "Hindi": "नमस्ते| दुनिया|,| क्षत्रिय| हैं|।",
    "Arabic": "السَّلامُ| عليكم|،| كيف| حالك|؟| ١٢٣",
    "Hebrew": 'צה"ל| צה״ל| ג׳ירפה| וכו׳| "|שלום|"|.',
    "Thai": "ภาษาไทยง่ายนิดเดียว| ครับ|!",
    "Korean": "안녕하세요|,| 세계|!| 한국어",
    "Japanese": "これは|テストデータ|です|。|3|月|、|人|々|「|ラーメン|」| ｶﾞｽ|・|らーめん",
    "Chinese": "我|爱|北|京|，|天|安|门|。| 𠮷|野|〇| iPhone|手|机|葛\U000e0100",
    "Greek, Russian, German": "Τι| κάνεις|;| Привет|,| мир|!| Straße| Übergröße|„|so|“",
    "Armenian, Georgian": "Ի՞նչ| է|։| გამარჯობა|.",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_words(case):
    expected = [token for token in case.replace(" ", "|").split("|") if token]
    assert words(case.replace("|", "")) == expected


def test_words_of_running_text_with_offsets():
    assert split_words("No,  don't!") == [
        Token("No", 0, 2),
        Token(",", 2, 3),
        Token("do", 5, 7),
        Token("n't", 7, 10),
        Token("!", 10, 11),
    ]


@given(st.text("abnt'’ .,-!?\"IMr1$%"))
def test_words_do_not_depend_on_what_stands_beyond_a_space(text):
    chunks = [chunk for chunk in text.split() if not chunk.endswith(".")]  # but initials do
    assert words(" ".join(chunks)) == [token for chunk in chunks for token in words(chunk)]


def test_characters_are_grapheme_clusters():
    tokens = build_tokenizer("characters")("e\u0301a 🇫🇷🇩👩‍👧\r\n한नि")
    assert [token.text for token in tokens] == ["e\u0301", "a", "🇫🇷", "🇩", "👩‍👧", "한", "नि"]


def test_chinese_words():
    tokens = tokenizer_or_skip("chinese")("我来到 北京清华大学。\n")
    assert tokens == [
        Token("我", 0, 1),
        Token("来到", 1, 3),
        Token("北京", 4, 6),
        Token("清华大学", 6, 10),
        Token("。", 10, 11),
    ]


HOSTILE = {
    "words": [
        *[
            "a",
            "'",
            "http://",
            "a@",
            "1,",
            ".",
            "a.",
            "a'",
            "-",
            "a+",
            "n't",
            "d'a",
            "A&",
            "#1",
            "A. ",
        ],
        *[
            "http://(",
            "http://!",
            "a@a.",
            "a" * 63 + "@" + "b." * 9,
            "中.",
            "🇦",
            "\u0600🇦",
            "\u0301",
        ],
    ],
    "characters": ["a", "🇦", "\u0600🇦", "\u0600", "👍\u200d", "\u0301", "\u200d", "\r\n"],
    "chinese": ["中", "a", "1.", "\ud800", " "],
    "whitespace": ["a", "a ", " "],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_time_is_linear_on_hostile_text(name):
    """A quarter of a second for 50,000 characters is usual; quadratic time would take minutes."""
    tokenize = tokenizer_or_skip(name)
    for piece in HOSTILE[name]:
        text = (piece * 50_000)[:50_000] + "a"
        start = time.process_time()
        tokens = tokenize(text)
        assert time.process_time() - start < 2.0, f"{name} is slow on {piece[:10]!a}"
        assert sum(len(token.text) for token in tokens) == len("".join(text.split()))


@pytest.mark.parametrize("name", NAMES)
def test_tokenizers_can_go_to_worker_processes(name):
    tokenize = tokenizer_or_skip(name)
    assert pickle.loads(pickle.dumps(tokenize)) is tokenize


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'word'.*words, whitespace, chinese, characters"):
        build_tokenizer("word")


def test_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ConfigError, match=r"pip install 'relmo\[chinese\]'"):
        build_tokenizer("chinese")


def test_every_tokenizer_is_covered_here():
    assert sorted(NAMES) == sorted(TOKENIZERS)
