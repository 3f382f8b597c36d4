"""Read treebanks in CoNLL-U: words and their part-of-speech tags."""

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
    """Yield the sentences of a file, with universal part-of-speech tags (UPOS).

    Tokens are syntactic words: a multiword token such as `don't` (id 1-2) is skipped in favour of
    its words `do` and `n't`, and empty nodes (id 8.1) are skipped.
    """
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(source, is_fixed=True), start=1):
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
