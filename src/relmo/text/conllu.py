"""Treebanks in CoNLL-U: words and their parts of speech."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relmo.errors import DataError
from relmo.text.corpus import read_lines

N_COLUMNS = 10


@dataclass(frozen=True)
class TaggedSentence:
    """Tokens, each with its tag."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def read_conllu(source: str | Path) -> Iterator[TaggedSentence]:
    """The sentences of a file, with universal parts of speech.

    Words are those of the syntax: of `don't`, written 1-2, its parts `do` and `n't`; words that are
    only meant (8.1) are left out.
    """
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(source), start=1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if tokens:
                yield TaggedSentence(tuple(tokens), tuple(tags))
            tokens, tags = [], []
            continue
        columns = line.split("\t")
        if len(columns) != N_COLUMNS:
            raise DataError(
                f"{source}, line {number}: found {len(columns)} columns, expected {N_COLUMNS} "
                "separated by tabs, as CoNLL-U has them."
            )
        if columns[0].isdecimal():
            tokens.append(columns[1])
            tags.append(columns[3])
    if tokens:
        yield TaggedSentence(tuple(tokens), tuple(tags))
