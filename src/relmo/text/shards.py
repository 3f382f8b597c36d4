"""A prepared corpus: tokenised sentences as word indices, in memory-mapped files (shards).

A unit of work is one file, or several small consecutive files. It becomes one or more shards, named
by a hash of the files' bytes and of all settings that the result depends on. So the same text is
never tokenised twice, and a changed file is prepared again together with the others of its unit.
Shards are independent of each other: several machines can prepare them.

Sentences are stored without boundaries. A token `<S>` or `</S>` in the text is left out, as it
would be taken for a boundary; `<UNK>` is kept, as the unknown word.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from relmo.errors import ConfigError, DataError
from relmo.mapped import map_safetensors
from relmo.progress import progress
from relmo.text.corpus import open_bytes
from relmo.text.processes import work_in_processes
from relmo.text.sentences import build_splitter, read_sentences
from relmo.text.shard_tables import FORMAT, Draft, check_shard, find_shards
from relmo.text.tokenize import build_tokenizer

_UNIT_BYTES = 2 << 20


class Words:
    """The distinct words of a shard, decoded on access."""

    def __init__(self, text: np.ndarray, ends: np.ndarray) -> None:
        self._text, self._ends = text, ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        index = range(len(self))[index]
        start = self._ends[index - 1] if index else 0
        return str(self._text[start : self._ends[index]].data, "utf-8")

    def __iter__(self) -> Iterator[str]:
        text, start = self._text.tobytes(), 0
        for end in self._ends.tolist():
            yield text[start:end].decode()
            start = end


class Shard:
    """A memory-mapped piece of prepared text.

    It is not validated here: run `check_shard` first on shards from elsewhere.

    Attributes:
        key: hash of its unit and settings, and its number within the unit.
        ids: (N,) index of each token in `words`.
        ends: (S,) where each sentence ends in `ids`.
        words: the distinct words, by falling frequency.
        counts: (U,) how often each of them occurs.
    """

    def __init__(self, path: Path) -> None:
        tables = map_safetensors(path).arrays
        self.key = path.stem
        self.ids, self.ends, self.counts = tables["ids"], tables["ends"], tables["counts"]
        self.words = Words(tables["words"], tables["word_ends"])

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.ends)

    @property
    def n_tokens(self) -> int:
        """Number of tokens, without boundaries."""
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """(S,) number of tokens of each sentence, at least 1."""
        return np.diff(self.ends, prepend=0)

    def sentence(self, index: int) -> list[str]:
        """The tokens of a sentence."""
        index = range(len(self.ends))[index]
        start = self.ends[index - 1] if index else 0
        return [self.words[i] for i in self.ids[start : self.ends[index]].tolist()]


@dataclass(frozen=True)
class Corpus:
    """Shards in the order of the text."""

    shards: tuple[Shard, ...]

    @classmethod
    def open(cls, paths: Sequence[Path]) -> Corpus:
        """Open shards prepared before, here or elsewhere.

        Raises:
            FormatError: One of them is not a whole shard.
            DataError: There is no sentence in any of them.
        """
        for path in paths:
            check_shard(path)
        return cls._open(paths)

    @classmethod
    def _open(cls, paths: Sequence[Path]) -> Corpus:
        shards = tuple(shard for shard in map(Shard, paths) if shard.n_sentences)
        if not shards:
            raise DataError("The text holds no sentence: all of it is blank. Give some text.")
        return cls(shards)

    @cached_property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return sum(shard.n_sentences for shard in self.shards)

    @cached_property
    def n_tokens(self) -> int:
        """Number of tokens, without boundaries."""
        return sum(shard.n_tokens for shard in self.shards)

    @cached_property
    def key(self) -> str:
        """Hash of the keys of all shards, in order."""
        keys = "\n".join(shard.key for shard in self.shards)
        return hashlib.blake2b(keys.encode(), digest_size=16).hexdigest()

    def count_words(self) -> Counter[str]:
        """How often each distinct word occurs."""
        counts: Counter[str] = Counter()
        for shard in self.shards:
            for word, n in zip(shard.words, shard.counts.tolist(), strict=True):
                counts[word] += n
        return counts


@dataclass(frozen=True)
class _Recipe:
    """The settings that shards depend on, besides the bytes of the text."""

    tokenizer: str
    lines: bool
    language: str
    encoding: str
    errors: str

    def __str__(self) -> str:
        needed = {"chinese": ["rjieba"]}.get(self.tokenizer, [])
        needed += [] if self.lines else ["sentencex"]
        values = asdict(self) | {name: version(name) for name in needed}
        return json.dumps([FORMAT, values | {"language": not self.lines and self.language}])


def prepare_corpus(
    texts: Sequence[str],
    *,
    tokenizer: str,
    lines: bool,
    language: str,
    cache: Path,
    encoding: str = "utf-8",
    errors: str = "strict",
    workers: int | None = None,
) -> Corpus:
    """Split and tokenise text into shards, or reuse those in `cache`.

    Args:
        texts: files, compressed or not, and "-" for standard input.
        tokenizer: name of one of `TOKENIZERS`.
        lines: one sentence per line; otherwise the text is prose.
        language: language of prose, as for `read_sentences`.
        cache: directory of the shards, created if missing.
        encoding: of the texts.
        errors: what to do with bytes that do not decode, as for `read_lines`.
        workers: number of processes. Default: one per core.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"The number of workers is {workers}; expected 1 or more.")
    build_tokenizer(tokenizer)
    if not lines:
        build_splitter(language)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"Cannot make {cache}: {error.strerror}. Choose another place.") from error
    prepare = partial(_prepare, _Recipe(tokenizer, lines, language, encoding, errors), cache)
    with _regular_files(texts, cache) as files:
        units = _units(files)
        n_workers = min(workers or os.cpu_count() or 1, len(units))
        n_bytes = sum(file.stat().st_size for file in files)
        with progress("preparing the text", n_bytes, "bytes") as advance:
            if n_workers > 1:
                prepared = work_in_processes(prepare, units, n_workers, advance)
            else:
                prepared = [prepare(unit, advance) for unit in units]
    return Corpus._open([*chain.from_iterable(prepared)])


@contextmanager
def _regular_files(texts: Sequence[str], cache: Path) -> Iterator[list[Path]]:
    """Files that can be read twice: standard input and pipes are copied first."""
    files = [Path(text) for text in texts]
    with ExitStack() as copies:
        for number, text in enumerate(texts):
            if text == "-" or not files[number].is_file():
                with open_bytes(text) as stream:
                    try:
                        folder = copies.enter_context(TemporaryDirectory(".copy", dir=cache))
                        name = "standard input" if text == "-" else files[number].name  # in errors
                        files[number] = Path(folder, name)
                        with files[number].open("wb") as copy:
                            shutil.copyfileobj(stream, copy)
                    except OSError as error:
                        advice = "Free some space, or choose another place."
                        raise DataError(
                            f"Cannot copy {text} to {cache}: {error.strerror}. {advice}"
                        ) from error
        yield files


def _units(files: Sequence[Path]) -> list[list[Path]]:
    units: list[list[Path]] = []
    room = 0
    for file in files:
        room -= file.stat().st_size
        if room < 0 or not units:
            units.append([])
            room = _UNIT_BYTES - file.stat().st_size
        units[-1].append(file)
    return units


def _prepare(
    recipe: _Recipe, cache: Path, files: list[Path], advance: Callable[[int], object]
) -> list[Path]:
    """Write the shards of a unit unless they exist already; return their paths."""
    digest = hashlib.blake2b(str(recipe).encode(), digest_size=16)
    for file in files:
        content = hashlib.blake2b()
        with open_bytes(file) as stream:
            while chunk := stream.read(1 << 20):
                content.update(chunk)
                advance(0)
        digest.update(content.digest())
    if paths := find_shards(cache, digest.hexdigest()):
        advance(sum(file.stat().st_size for file in files))
        return paths
    tokenize = build_tokenizer(recipe.tokenizer)
    paths, shard = [], Draft()
    for file in files:
        for sentence in read_sentences(
            str(file),
            lines=recipe.lines,
            language=recipe.language,
            encoding=recipe.encoding,
            errors=recipe.errors,
            advance=advance,
        ):
            if shard.is_full:
                paths.append(shard.write(cache, digest.hexdigest(), len(paths), last=False))
                shard = Draft()
            shard.add([token.text for token in tokenize(sentence)])
    return [*paths, shard.write(cache, digest.hexdigest(), len(paths), last=True)]
