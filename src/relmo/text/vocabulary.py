"""The words of a model's softmax, by falling frequency; `<S> </S> <UNK>` come first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from relmo.errors import FormatError

SPECIAL = ("<S>", "</S>", "<UNK>")
UNKNOWN = "<UNK>"


@dataclass(frozen=True)
class Vocabulary:
    """Words by number."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Each word's number."""
        return {word: number for number, word in enumerate(self.words)}

    def number(self, word: str) -> int:
        """A word's number, or that of `<UNK>`."""
        return self.numbers.get(word, self.numbers[UNKNOWN])

    def to_text(self) -> str:
        """One word a line, as `parse_vocabulary` reads it."""
        return "".join(f"{word}\n" for word in self.words)


def parse_vocabulary(data: bytes, where: str) -> Vocabulary:
    """Read one word a line, UTF-8, lines ending at newlines only; `where` names it in errors."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{where}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x}). "
            "A vocabulary is UTF-8, one word a line: convert it first."
        ) from None
    words = [line.removesuffix("\r") for line in lines]
    if words and not words[-1]:
        words.pop()
    words = [word for word in words if word != "!!!MAXTERMID"]  # a relic of the oldest files
    if tuple(words[:3]) != SPECIAL:
        raise FormatError(
            f"{where} begins with {words[:3]}; a vocabulary begins with {list(SPECIAL)} and goes "
            "on by falling frequency, one word a line."
        )
    return Vocabulary(tuple(words))
