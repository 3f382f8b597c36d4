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

from relmo.errors import DataError, FormatError
from relmo.features.datasets import TABLE_SUFFIX, show_bytes
from relmo.features.layers import Features
from relmo.features.manifest import DTYPES, Manifest, Part, Table
from relmo.features.plan import Plan
from relmo.progress import Advance, progress

KIND = "features"
BATCH_TOKENS = 8192  # padded, that are computed at a time
PART_BYTES = 64 << 20  # after which what is computed is safe from a kill
VALUES = {"float16": torch.float16, "float32": torch.float32}
INDEX = frozenset(("hashes", "spans", "words"))  # tables that say where vectors are
_COMPARED = 16  # numbers of layer 0
_ROUNDING = 1e-3  # by which they may differ, relative to the largest, on some processors
_TOO_LARGE = 65520  # rounds to infinity in float16


def dataset_settings(features: Features, dtype: str, n_sentences: int) -> dict[str, Any]:
    """What a data set depends on beside the features' identity and the sentences themselves."""
    sizes = {"n_layers": features.n_layers, "dim": features.dim}
    return {"dtype": dtype, **sizes, "n_sentences": n_sentences}


def table_layout(n_layers: int, dim: int, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of the rows of each table."""
    layout: dict[str, tuple[str, tuple[int, ...]]]
    layout = {"hashes": ("bytes16", ()), "spans": ("int64", (2,))}
    if n_layers == 1:
        return layout | {"layers": (dtype, (1, dim))}
    layout |= {"words": ("int32", ()), "layer0": (dtype, (dim,))}
    return layout | {"layers": (dtype, (n_layers - 1, dim))}


class Fill:
    """A data set that is being filled, in a folder that this process has locked.

    Attributes:
        manifest: of what is safely on disk.
    """

    def __init__(self, folder: Path, features: Features, plan: Plan, dtype: str) -> None:
        self._folder, self._features, self._plan, self._dtype = folder, features, plan, dtype
        self._n_own = min(1, features.n_layers - 1)  # layers kept once per word: layer 0, or none
        settings = dataset_settings(features, dtype, len(plan.sentences))
        settings |= {"name": features.name, "n_tokens": plan.n_rows - 2 * len(plan.sentences)}
        n_rows = {
            "hashes": len(plan.hashes),
            "spans": len(plan.spans),
            "words": plan.n_rows,
            "layer0": plan.n_words,
            "layers": plan.n_rows,
        }
        layout = table_layout(features.n_layers, features.dim, dtype)
        tables = [Table(name, *row, n_rows[name]) for name, row in layout.items()]
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
                _sums(found, name) != [_sha256(rows, found.table(name).dtype)]
                for name, rows in self._index().items()
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
            x, tokens = self._vectors(chunk)  # (K, B · T, D) and (n,)
            if self._n_own:
                new = self._new_words(chunk, x[0], tokens, n_words)
                writers["layer0"].write(self._round(x[0, new]))
                n_words = int(self._plan.word_stops[chunk.stop])
            rows = self._round(x[self._n_own :].transpose(0, 1))  # (B · T, K - 1, D)
            writers["layers"].write(rows if len(tokens) == len(rows) else rows[tokens])
            advance(len(tokens))
            is_last = chunk.stop == len(self._plan.sentences)
            if is_last or sum(writer.n_bytes for writer in writers.values()) >= PART_BYTES:
                parts = [writer.finish_part() for writer in writers.values()]
                self.manifest = self.manifest.with_parts(*parts)
                self.manifest.write(self._folder)

    @torch.no_grad()
    def _vectors(self, chunk: slice) -> tuple[Tensor, Tensor]:
        """(K, B · T, D) of some sentences, and (n,) where their tokens are, in order of rows."""
        features, sentences = self._features, self._plan.sentences[chunk]
        layers = features.batch(sentences, boundaries=True)
        expected = [len(sentence) + 2 for sentence in sentences]
        shape = (features.n_layers, len(sentences), max(expected), features.dim)
        if tuple(layers.values.shape) != shape or layers.lengths.tolist() != expected:
            raise DataError(
                f"Features {features.name!r} gave vectors of shape {tuple(layers.values.shape)} "
                f"for a batch with boundaries, expected {shape} and a mask of these sentences."
            )
        tokens = layers.mask.cpu().view(-1).nonzero()[:, 0]
        return layers.values.detach().cpu().flatten(1, 2), tokens

    def _new_words(self, chunk: slice, x: Tensor, tokens: Tensor, n_words: int) -> Tensor:
        """(w,) where in x (B · T, D), which is layer 0, words come for the first time."""
        start, stop = self._plan.starts[[chunk.start, chunk.stop]]
        words, first, inverse = np.unique(
            self._plan.words[start:stop], return_index=True, return_inverse=True
        )
        # Some numbers of each vector tell whether it depends on more than the word.
        some = x[:, :: max(1, x.shape[1] // _COMPARED)].numpy()[tokens.numpy()]
        if np.abs(some - some[first[inverse]]).max() > _ROUNDING * np.abs(some).max():
            raise DataError(
                f"Layer 0 of the features {self._features.name!r} differs between two occurrences "
                "of a word, expected the same vector: the store keeps it once per word."
            )
        return tokens[torch.from_numpy(first[words >= n_words])]

    def _round(self, x: Tensor) -> Tensor:
        """The same numbers as they are stored, in one block of memory."""
        if x.numel():
            low, high = x.aminmax()
            largest = max(-low.item(), high.item())
            if self._dtype == "float16" and _TOO_LARGE <= largest < np.inf:
                raise DataError(
                    f"The features {self._features.name!r} have values up to {largest:.3g}, more "
                    "than float16 can hold. Store them as float32."
                )
        return torch.empty(x.shape, dtype=VALUES[self._dtype]).copy_(x)

    def _index(self) -> dict[str, np.ndarray]:
        """The tables that are known before any vector is."""
        plan = self._plan
        index: dict[str, np.ndarray] = {"hashes": plan.hashes, "spans": plan.spans}
        return index | ({"words": plan.words} if self._n_own else {})

    def _write_index(self) -> None:
        parts = []
        with self._told_of_full_disk():
            for name, rows in self._index().items():
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
