"""Four tokenizers with one interface: text to tokens with character offsets.

Always: `input[token.start:token.end] == token.text`; tokens are in order and do not overlap; the
concatenated tokens are the text without its whitespace. Whitespace is what `str.split()` splits at
(including U+00A0, U+3000 and U+001C to U+001F, but not U+200B).

The conventions of `words`:

* English clitics are split off as in the Penn Treebank and the One Billion Word corpus: `do n't`,
  `it 's`, `the dogs '`; `cannot`, `o'clock`, `O'Brien`, `y'all` and `rock'n'roll` stay whole.
* French and Italian elisions (`l' homme`, `qu' il`, `dell' arte`) are split off only before a
  vowel or h, so that `c'mon` and `m'lady` stay whole (but `D' Angelo` is split).
* A single `-`, `.`, `_` or `·` inside a word joins it (`well-known`, `node.js`); so do `,` `:` `/`
  between digits (`1,234.56`, `10:30`, `9/11`) and `&` between capitals (`AT&T`). Signs and units
  stand alone: `- 5`, `$ 5`, `50 %`.
* A final period belongs to dotted abbreviations (`U.S.`, `e.g.`), to initials before a capital
  (`J. Smith`; never `I.`) and to the titles, months and company forms listed below, also at
  the end of a sentence: only a sentence splitter could tell the two uses apart.
* A run of one mark (`...`, `--`, `!!!`, `''`) is one token; brackets and `"` always stand alone.
* Han characters stand alone, since only a dictionary can join them (see `chinese`); hiragana and
  katakana runs stay whole, as do runs of Thai, Lao, Khmer and Burmese.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import regex

from relmo.errors import ConfigError


class Token(NamedTuple):
    """A piece of text and its half-open character offsets there."""

    text: str
    start: int
    end: int


Tokenizer: TypeAlias = Callable[[str], list[Token]]

# regex leaves U+001C..U+001F out of \s; str.split() does not.
_SPACE = r"\s\x1C-\x1F"

# A user-perceived character. \X alone would look back over a whole run of flag letters at each of
# them (quadratic time), and would glue a space to an Arabic number sign before it.
_GRAPHEME = rf"""
    \p{{Regional_Indicator}}{{1,2}} [\p{{M}}\u200C\u200D]*+
  | \p{{GCB=Prepend}}++ (?= [{_SPACE}] )
  | (?! [{_SPACE}] ) \X
"""

# Words: letters, digits, their marks and invisible joiners (UAX #29); U+05F3 is a Hebrew geresh.
_HAN_KANA = r"\p{Han}\p{Hiragana}\p{Katakana}"
_LETTER = rf"[\p{{L}}--[{_HAN_KANA}]]"
_START = rf"[[\p{{L}}\p{{N}}]--[{_HAN_KANA}]]"
_W = rf"[[\p{{L}}\p{{M}}\p{{N}}\p{{Cf}}\u05F3]--[{_HAN_KANA}\u200B]]"
_CLITIC = rf"['’] (?i: s | m | d | ll | re | ve ) (?! {_W} )"
_URL = rf"[{_W}%/?&=+@\#:;.,!~*'$|_-]"

# Every branch that can look ahead without matching is bounded or scans a stretch that no other
# start scans again, so time is linear in the text, whatever the text.
_WORDS = rf"""
    [0-9] \uFE0F?+ \u20E3                                   # an emoji keycap
  | (?: {_START} {_W}*+ | [,.;"()?!] ) (?= [ \n] )          # most tokens: no other rule applies
  | (?i: (?: https? | ftp ) :// | www\. )
    (?: {_URL} | (?> \( {_URL}*+ \) ) )+ (?<! [.,;:!?'*_] )
  | {_START} [{_W}.+_-]{{0,63}}+ @                          # an e-mail address, RFC 5321 lengths
    (?: [A-Za-z0-9-]{{1,63}}+ \. ){{1,8}} [A-Za-z]{{2,63}} (?! [{_W}@] )
  | (?<! {_W} ) @ [\w--[\p{{Han}}]]++
  | (?<! {_W} ) \# (?= \p{{N}}*+ [\p{{L}}_] ) \w++
  | (?: Mrs? | Ms | Dr | Prof | St | Mt | Rev | Hon | Gen | Col | Capt | Lt | Sgt | Gov | Sen | Rep
      | Messrs | Mme | Mlle | Jr | Sr | Inc | Ltd | Corp | Co | vs | etc | Ph\.D
      | Jan | Feb | Aug | Sept? | Oct | Nov | Dec ) \. (?! \. )
  | (?: {_LETTER} \p{{M}}*+ \. ){{2,}}+ (?! {_W} ) (?: - {_START} {_W}*+ )*+     # U.S., U.S.-led
  | (?! I\. ) \p{{Lu}} \. (?= [ ] \p{{Lu}} )                # J. Smith
  | (?= [A-Za-z]++ ['’] [tT] (?! {_W} ) ) [A-Za-z]+ (?= [nN] ['’] )
  | [nN] ['’] [tT] (?! {_W} )
  | {_CLITIC}
  | ['’] (?i: em | tis | twas | \d0s ) (?! {_W} )
  | (?i: [cdjlmnst] | (?: jus | lors | puis | quoi )? qu | un | (?: a | da | de | ne | su ) ll )
    ['’] (?= (?i: [aehiouyàâäèéêëìîïòôöùûüœæ] ) )
  | {_START} {_W}*+
    (?: (?: [-.·_\u2010\u2011\u055A-\u055E\u05F4]
          | (?! {_CLITIC} ) ['’]
          | (?<= \p{{N}} ) [,:/\u066B\u066C] (?= \p{{N}} )
          | (?<= \p{{Lu}} ) & (?= \p{{Lu}} )
          | (?<= \p{{Hebrew}} ) " (?= \p{{Hebrew}} )
        ) {_START} {_W}*+ )*+
  | \p{{Han}} \p{{M}}*+
  | \p{{Hiragana}} [\p{{Hiragana}}\p{{M}}ー]*+
  | \p{{Katakana}} [\p{{Katakana}}\p{{M}}ーｰﾞﾟ]*+
  | ( [-.!?*=~+<>$\#_'`/…—–―] ) \1++
  | {_GRAPHEME}
"""

_FLAGS = regex.VERSION1 | regex.VERBOSE
_WORD_PATTERN = regex.compile(_WORDS, _FLAGS)
_CHARACTER_PATTERN = regex.compile(_GRAPHEME, _FLAGS)
_CHUNK_PATTERN = regex.compile(rf"[^{_SPACE}]++", _FLAGS)


def split_whitespace(text: str) -> list[Token]:
    """Split at whitespace, as `str.split()` does: for text that is already tokenised."""
    return [Token(m[0], *m.span()) for m in _CHUNK_PATTERN.finditer(text)]


def split_words(text: str) -> list[Token]:
    """Split into words, numbers and punctuation marks, for languages written with spaces."""
    return [Token(m[0], *m.span()) for m in _WORD_PATTERN.finditer(text)]


def split_characters(text: str) -> list[Token]:
    """Split into user-perceived characters (grapheme clusters)."""
    return [Token(m[0], *m.span()) for m in _CHARACTER_PATTERN.finditer(text)]


def split_chinese(text: str) -> list[Token]:
    """Split into Chinese words, by dictionary and HMM (docs/adr/0004-chinese-segmenter.md)."""
    try:
        import rjieba
    except ImportError as error:
        raise ConfigError(
            "The tokenizer 'chinese' needs the package rjieba, which is not installed. "
            "Install it with: pip install 'relmo[chinese]'"
        ) from error
    # rjieba takes no lone surrogates; "replace" puts one "?" for each, so offsets hold.
    pieces = rjieba.tokenize(text.encode("utf-8", "replace").decode("utf-8"))
    return [Token(text[i:j], i, j) for piece, i, j in pieces if not piece.isspace()]


TOKENIZERS: dict[str, Tokenizer] = {
    "words": split_words,
    "whitespace": split_whitespace,
    "chinese": split_chinese,
    "characters": split_characters,
}


def build_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer with this name.

    Raises:
        ConfigError: No tokenizer has that name, or it needs an extra that is not installed.
    """
    if name not in TOKENIZERS:
        raise ConfigError(
            f"There is no tokenizer {name!r}; choose one of {', '.join(TOKENIZERS)}.",
            settings=["tokenizer"],
        )
    tokenizer = TOKENIZERS[name]
    tokenizer("")  # raises now if an extra is missing, not in the middle of a corpus
    return tokenizer
