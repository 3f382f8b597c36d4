"""Filling a data set of a store: vectors are computed chunk by chunk and kept part by part."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from relmo.errors import ConfigError, DataError, FormatError
from relmo.features.datasets import TABLE_SUFFIX, show_bytes
from relmo.features.layers import Features
from relmo.features.manifest import DTYPES, Manifest, Part, Table
from relmo.features.plan import Plan
from relmo.progress import Advance, progress

KIND = "features"
BATCH_TOKENS = 8192  # padded, that are computed at a time
PART_BYTES = 64 << 20  # after which what is computed is safe from a kill
VALUES = {"float16": torch.float16, "float32": torch.float32}
INDEX = frozenset(("hashes", "spans", "words"))  # tables that are known before any vector is
_SAME = 1e-3  # layer 0 of a word may differ by rounding, relative to the largest value


def dataset_settings(features: Features, dtype: str, n_sentences: int) -> dict[str, Any]:
    """What a data set depends on beside the features' identity and the sentences themselves."""
    sizes = {"n_layers": features.n_layers, "dim": features.dim}
    return {"dtype": dtype, **sizes, "n_sentences": n_sentences}


class Fill:
    """A data set that is being filled, in a folder that this process has locked.

    Attributes:
        manifest: of what is safely on disk; of nothing yet until `start` or `resume`.
    """

    def __init__(self, folder: Path, features: Features, plan: Plan, dtype: str) -> None:
        self._folder, self._features, self._plan, self._dtype = folder, features, plan, dtype
        self._n_own = min(1, features.n_layers - 1)  # layers kept once per word: layer 0, or none
        settings = dataset_settings(features, dtype, len(plan.sentences))
        settings |= {"name": features.name, "n_tokens": plan.n_rows - 2 * len(plan.sentences)}
        shape = (features.n_layers - self._n_own, features.dim)
        index = self._index()
        tables = [
            Table(name, kind, rows.shape[1:], len(rows)) for name, (kind, rows) in index.items()
        ]
        if self._n_own:
            tables.append(Table("layer0", dtype, (features.dim,), plan.n_words))
        tables.append(Table("layers", dtype, shape, plan.n_rows))
        self.manifest = Manifest(KIND, features.identity, settings, tuple(tables))

    def resume(self, found: Manifest) -> None:
        """Go on after the complete parts of an earlier fill, whose checksums must be right.

        Raises:
            FormatError: They are not what this fill would have written.
        """
        n_rows, n_words = found.n_complete("layers"), 0
        first = int(np.searchsorted(self._plan.starts, n_rows))
        if self._n_own:
            n_words = int(self._plan.word_stops[first]) if n_rows else 0
        if (
            found.tables != self.manifest.tables
            or self._plan.starts[first] != n_rows
            or (self._n_own and found.n_complete("layer0") != n_words)
            or any(
                _sums(found, name) != [_sha256(rows, dtype)]
                for name, (dtype, rows) in self._index().items()
            )
        ):
            raise FormatError(f"{self._folder} was begun in another way.")
        found.check_sizes(self._folder)
        found.check_sums(self._folder)
        self.manifest = found

    def run(self) -> None:
        """Compute what is missing.

        Raises:
            DataError: The disk is full, or vectors are not as the features promise.
        """
        self._check_space()
        if not self.manifest.parts:
            self._write_index()
        n_done = self.manifest.n_complete("layers")
        first = int(np.searchsorted(self._plan.starts, n_done))
        chunks = self._plan.chunks(first, BATCH_TOKENS)
        with progress("Computing features", self._plan.n_rows, "words") as advance:
            advance(n_done)
            with ExitStack() as files, self._told_of_full_disk():
                self._compute(chunks, files, advance)

    def _compute(self, chunks: Iterator[slice], files: ExitStack, advance: Advance) -> None:
        writers = {
            name: files.enter_context(_PartWriter(self._folder, self.manifest, name))
            for name in ("layer0", "layers")[1 - self._n_own :]
        }
        n_words = self.manifest.n_complete("layer0")
        for chunk in chunks:
            x = self._vectors(chunk)  # (K, n, D)
            if self._n_own:
                writers["layer0"].write(self._round(self._new_words(chunk, x[0], n_words)))
                n_words = int(self._plan.word_stops[chunk.stop])
            writers["layers"].write(self._round(x[self._n_own :].transpose(0, 1)))
            advance(x.shape[1])
            is_last = chunk.stop == len(self._plan.sentences)
            if is_last or sum(writer.n_bytes for writer in writers.values()) >= PART_BYTES:
                parts = [writer.finish_part() for writer in writers.values()]
                self.manifest = self.manifest.with_parts(*parts)
                self.manifest.write(self._folder)

    @torch.no_grad()
    def _vectors(self, chunk: slice) -> Tensor:
        """(K, n, D) of the tokens of some sentences, in the order of their rows."""
        features, sentences = self._features, self._plan.sentences[chunk]
        layers = features.batch(sentences, boundaries=True)
        expected = [len(sentence) + 2 for sentence in sentences]
        shape = (features.n_layers, len(sentences), max(expected), features.dim)
        if tuple(layers.values.shape) != shape or layers.lengths.tolist() != expected:
            raise DataError(
                f"Features {features.name!r} gave vectors of shape {tuple(layers.values.shape)} "
                f"for a batch with boundaries, expected {shape} and a mask of these sentences."
            )
        return layers.values[:, layers.mask].float().cpu()

    def _new_words(self, chunk: slice, x: Tensor, n_words: int) -> Tensor:
        """(w, D) layer 0 of the words that come for the first time, from that of all rows."""
        start, stop = self._plan.starts[[chunk.start, chunk.stop]]
        words, first, inverse = np.unique(
            self._plan.words[start:stop], return_index=True, return_inverse=True
        )
        by_word = x[torch.from_numpy(first)]
        if ((x - by_word[torch.from_numpy(inverse)]).abs().amax() > _SAME * x.abs().amax()).item():
            raise DataError(
                f"Layer 0 of the features {self._features.name!r} differs between two occurrences "
                "of a word, expected the same vector: the store keeps it once per word."
            )
        return by_word[torch.from_numpy(words >= n_words)]

    def _round(self, x: Tensor) -> Tensor:
        rounded = x.to(VALUES[self._dtype])
        if not rounded.isfinite().all() and x.isfinite().all():
            raise ConfigError(
                f"The features {self._features.name!r} have values up to {x.abs().max():.3g}, "
                f"more than {self._dtype} can hold. Store them as float32."
            )
        return rounded.contiguous()

    def _index(self) -> dict[str, tuple[str, np.ndarray]]:
        """The tables that are known now: type and rows."""
        plan = self._plan
        index: dict[str, tuple[str, np.ndarray]] = {
            "hashes": ("bytes16", plan.hashes),
            "spans": ("int64", plan.spans),
        }
        return index | ({"words": ("int32", plan.words)} if self._n_own else {})

    def _write_index(self) -> None:
        parts = []
        with self._told_of_full_disk():
            for name, (_, rows) in self._index().items():
                with _PartWriter(self._folder, self.manifest, name) as writer:
                    writer.write(rows)
                    parts.append(writer.finish_part())
        self.manifest = self.manifest.with_parts(*parts)
        self.manifest.write(self._folder)

    def _check_space(self) -> None:
        missing = self.manifest.n_bytes - sum(self.manifest.file_sizes().values())
        free = shutil.disk_usage(self._folder).free
        if missing > free:
            raise DataError(
                f"The features of this data set need {show_bytes(missing)} more in "
                f"{self._folder.parent}, where {show_bytes(free)} are free. Free some space, or "
                "choose another directory."
            )

    @contextmanager
    def _told_of_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"Cannot write features to {self._folder}: {error.strerror or error}. What is "
                "complete is kept. Free some space and do the same again, or choose another "
                "directory."
            ) from error


class _PartWriter:
    """Appends rows to the file of a table, after the parts that are complete."""

    def __init__(self, folder: Path, manifest: Manifest, name: str) -> None:
        self._name, self._file_name = name, name + TABLE_SUFFIX
        table = manifest.table(name)
        self._dtype, self._row_bytes = DTYPES[table.dtype], table.row_bytes
        self._start = manifest.n_complete(name)
        self._file: BinaryIO = (folder / self._file_name).open("ab")
        self._file.truncate(self._start * self._row_bytes)  # a killed fill may have written more
        self.n_bytes, self._digest = 0, hashlib.sha256()  # of the present part

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()
        except OSError:  # the full disk that has been told of already
            if error[0] is None:
                raise

    def write(self, rows: np.ndarray | Tensor) -> None:
        data = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).data
        self._file.write(data)
        self._digest.update(data)
        self.n_bytes += data.nbytes

    def finish_part(self) -> Part:
        """Bring what was written to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        stop = self._start + (self.n_bytes // self._row_bytes if self._row_bytes else 0)
        part = Part(self._name, self._file_name, self._start, stop, self._digest.hexdigest())
        self._start, self.n_bytes, self._digest = stop, 0, hashlib.sha256()
        return part


def _sha256(rows: np.ndarray, dtype: str) -> str:
    return hashlib.sha256(rows.astype(DTYPES[dtype], copy=False).tobytes()).hexdigest()


def _sums(manifest: Manifest, name: str) -> list[str]:
    return [part.sha256 for part in manifest.parts if part.table == name]
