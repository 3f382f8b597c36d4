"""Split prose into sentences.

A blank line ends a paragraph. Other line ends depend on the text: some texts wrap their lines at a
fixed width, others have one paragraph per line and no blank lines. `_is_wrapped` decides this for a
file by its beginning: text counts as wrapped if most characters of lines that are followed by
another line are on short lines that end in the middle of a sentence.

Wrapped lines are joined with a space, except for

* scripts that are written without spaces (Han, kana, Thai, Lao, Khmer, Burmese);
* a word broken after its hyphen: `drawing-` `room` becomes `drawing-room`. So does the rarer
  `mean-` `while`, as only a dictionary could tell them apart. A soft hyphen is removed.

Paragraphs are split by sentencex, which knows the abbreviations and quotation marks of many
languages, and keeps a speech in quotation marks in one piece.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, pairwise

import regex

from relmo.errors import ConfigError
from relmo.text.corpus import read_lines

LONGEST_LINE = 1 << 20  # characters; longer lines are cut into pieces
_LONGEST_PARAGRAPH = 100_000  # characters; sentencex needs time quadratic in them
_LONGEST_WRAPPED = 120  # characters of a line
_SAMPLE = 1 << 20  # characters of a file that decide whether its lines are wrapped

_FLAGS = regex.VERSION1
_SENTENCE_END = regex.compile(r"[\p{SB=STerm}\p{SB=ATerm}…:：][\p{SB=Close}*_]*$", _FLAGS)
_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    r"\u3000-\u303F\uFF00-\uFF65]"
)
_NO_SPACE = regex.compile(
    rf"\n(?: (?<={_UNSPACED}\n)(?={_UNSPACED}|\W) | (?<=\W\n)(?={_UNSPACED})"
    r"| (?<=\p{L}[-‐]\n)(?=\p{L}) )".replace(" ", ""),
    _FLAGS,
)
_ISO_639_1 = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy "
    "da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu "
    "hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb "
    "lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om "
    "or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv "
    "sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
_CLOSING = "』」】）》〉〕］｝"  # sentencex puts some of them into the next sentence


def read_sentences(
    source: str,
    *,
    lines: bool,
    language: str = "en",
    encoding: str = "utf-8",
    errors: str = "strict",
    advance: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """Stream the sentences of a file, or of standard input if `source` is "-".

    Args:
        source: the file, or "-".
        lines: one sentence per line, blank lines skipped; otherwise the text is prose.
        language: ISO 639 code of the language of prose ("en", "zh"). Languages that sentencex
            does not know are split by general rules.
        encoding: of the text.
        errors: what to do with bytes that do not decode, as for `read_lines`.
        advance: called with the number of bytes of each read, as by `read_lines`.
    """
    split = None if lines else build_splitter(language)
    text = read_lines(
        source, encoding=encoding, errors=errors, longest=LONGEST_LINE, advance=advance
    )
    stripped = map(str.strip, text)
    if split is None:
        return filter(None, stripped)
    return chain.from_iterable(map(split, _paragraphs(stripped)))


def build_splitter(language: str) -> Callable[[str], list[str]]:
    """Return a function that splits a paragraph into sentences.

    Raises:
        ConfigError: `language` is not a language code, or sentencex is not installed.
    """
    code = regex.fullmatch(r"([a-z]{2,3})(-[A-Za-z0-9-]+)?", language)
    if code is None or (len(code[1]) == 2 and code[1] not in _ISO_639_1.split()):
        raise ConfigError(
            f"Unknown language {language!r}: expected the ISO 639 code of a language, such as "
            "en, de or zh.",
            settings=["language"],
        )
    try:
        from sentencex import segment
    except ImportError as error:
        raise ConfigError(
            "Splitting prose into sentences needs the package sentencex, which is not installed. "
            "Install it with: pip install 'relmo[sentences]', or give text with one "
            "sentence per line.",
            settings=["lines"],
        ) from error

    def split(paragraph: str) -> list[str]:
        sentences: list[str] = []
        # sentencex takes no lone surrogates, which some encodings let through
        for piece in segment(language, paragraph.encode("utf-8", "replace").decode("utf-8")):
            rest = piece.lstrip(_CLOSING)
            if sentences and rest != piece:
                sentences[-1] += piece[: len(piece) - len(rest)]
            if rest := rest.strip():
                sentences.append(rest)
        return sentences

    return split


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Join lines (stripped) into paragraphs of bounded length."""
    sample: list[str] = []
    n_characters = 0
    for line in lines:
        sample.append(line)
        n_characters += len(line) + 1
        if n_characters >= _SAMPLE:
            break
    lines = chain(sample, lines)
    if not _is_wrapped(sample):
        return chain.from_iterable(map(_cut, lines))
    blocks = (block for filled, block in groupby(lines, bool) if filled)
    return chain.from_iterable(map(_join, blocks))


def _is_wrapped(sample: list[str]) -> bool:
    """Whether lines are wrapped, decided by the characters of lines that another line follows."""
    n_characters = n_wrapped = 0
    for line, following in pairwise(sample):
        if following:
            n_characters += len(line)
            if len(line) <= _LONGEST_WRAPPED and not _SENTENCE_END.search(line):
                n_wrapped += len(line)
    return 2 * n_wrapped > n_characters


def _join(lines: Iterable[str]) -> Iterator[str]:
    """Join wrapped lines into one paragraph, or several if it is too long."""
    waiting: list[str] = []
    n_characters = 0
    for line in chain.from_iterable(map(_cut, lines)):
        if n_characters + len(line) > _LONGEST_PARAGRAPH:
            yield _joined(waiting)
            waiting, n_characters = [], 0
        waiting.append(line)
        n_characters += len(line) + 1
    yield _joined(waiting)


def _joined(lines: list[str]) -> str:
    text = "\n".join(lines).replace("\u00ad\n", "")
    if "-\n" in text or not text.isascii():
        text = _NO_SPACE.sub("", text)
    return text.replace("\n", " ")


def _cut(line: str) -> Iterator[str]:
    """Cut a long line into pieces, at spaces where there are any."""
    start = 0
    while len(line) - start > _LONGEST_PARAGRAPH:
        end = start + _LONGEST_PARAGRAPH
        end = line.rfind(" ", start + 1, end) + 1 or end
        yield line[start:end]
        start = end
    if start < len(line):
        yield line[start:]
