"""Read text for functions that take files: one sentence per line, or prose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from relmo.errors import ConfigError
from relmo.text.corpus import find_texts, read_lines
from relmo.text.sentences import read_sentences

TextSource: TypeAlias = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class TextOptions:
    """How to read a text.

    Attributes:
        prose: split the text into sentences; otherwise it has one sentence per line.
        language: language of prose, as an ISO 639 code.
        encoding: encoding of the text.
        errors: what to do with bytes that do not decode: "strict" raises an error, "replace" puts
            U+FFFD, "ignore" leaves them out, "backslashreplace" writes their values.

    Example:
        >>> import relmo
        >>> relmo.TextOptions(prose=True, language="de")
        TextOptions(prose=True, language='de', encoding='utf-8', errors='strict')
    """

    prose: bool = False
    language: str = "en"
    encoding: str = "utf-8"
    errors: str = "strict"


LINES = TextOptions()
PROSE = TextOptions(prose=True)


class TextReader:
    """The sentences of files, as a stream that knows how far it has come.

    The first file is opened at once, so that mistakes show before a model is loaded.

    Args:
        source: a file, a directory, a pattern or "-", or several of them.
        options: how to read them.
        blank_lines: keep blank lines of a text with one sentence per line, as empty sentences.
    """

    def __init__(
        self, source: TextSource, options: TextOptions, *, blank_lines: bool = False
    ) -> None:
        self._options, self._blank_lines = options, blank_lines
        self._files = expand_texts(source)
        self._n_read = 0
        sizes = [Path(file).stat().st_size for file in self._files if file != "-"]
        self._n_bytes = sum(sizes) if len(sizes) == len(self._files) else 0
        self._first = self._read(self._files[0]) if self._files else iter(())

    def __iter__(self) -> Iterator[str]:
        return (sentence for sentence, _ in self.with_shares())

    def with_shares(self) -> Iterator[tuple[str, float | None]]:
        """Yield each sentence, and the share of all bytes that has been read; None if unknown."""
        for sentences in self._streams():
            for sentence in sentences:
                yield sentence, self._n_read / self._n_bytes if self._n_bytes else None

    def _streams(self) -> Iterable[Iterator[str]]:
        yield self._first
        yield from map(self._read, self._files[1:])

    def _read(self, file: str) -> Iterator[str]:
        encoding, errors = self._options.encoding, self._options.errors
        if self._blank_lines and not self._options.prose:
            return read_lines(file, encoding=encoding, errors=errors, advance=self._advance)
        return read_sentences(
            file,
            lines=not self._options.prose,
            language=self._options.language,
            encoding=encoding,
            errors=errors,
            advance=self._advance,
        )

    def _advance(self, n_bytes: int) -> None:
        self._n_read += n_bytes


def expand_texts(source: TextSource) -> list[str]:
    """Return the files that a file, directory, pattern or "-", or several of them, stand for."""
    return find_texts(list_texts(source))


def list_texts(source: TextSource) -> list[str]:
    """Return one or several texts as a list of strings, as they were named."""
    if not isinstance(source, str | Path | Iterable):
        raise ConfigError(
            f"Expected a file, directory, pattern or -, or a list of them, found {source!r:.40}."
        )
    return [str(text) for text in ([source] if isinstance(source, str | Path) else source)]
