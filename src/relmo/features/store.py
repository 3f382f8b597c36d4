"""Features on disk: computed once, then read by any process without running the biLM.

A data set is a set of distinct sentences. Its folder holds the layers of every token, boundaries
included, as float16 or float32, in tables that are mapped into memory:

    hashes (S,)           of the sentences, sorted
    spans (S, 2)          the rows of each sentence
    words (N,)            the number of each row's word
    layer0 (W, D)         of each distinct word: this layer does not depend on the context
    layers (N, K - 1, D)  the other layers of each row

Features of one layer have no `words` and `layer0`, and `layers` is (N, 1, D). A killed fill resumes
after its last complete part. A damaged data set is computed again, with a warning.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relmo.arrays import IntArray
from relmo.errors import ConfigError, DataError, FormatError, RelmoWarning
from relmo.features import datasets
from relmo.features.datasets import TABLE_SUFFIX, VERIFIED, DatasetDirectory, Reader
from relmo.features.fill import INDEX, KIND, VALUES, Fill, dataset_settings, table_layout
from relmo.features.layers import Features, Layers, Sentences
from relmo.features.live import LiveFeatures
from relmo.features.manifest import DTYPES, MANIFEST, Manifest, Table
from relmo.features.plan import Hashes, Plan, hash_sentences
from relmo.formats.published import cache_directory
from relmo.inference.model import Model

_MEMBERS = ("name", "identity", "n_layers", "dim", "batch")  # of `Features`


class FeatureStore:
    """A directory of stored features, bounded in size.

    Attributes:
        directory: where the data sets are.
        max_bytes: what all of them may take; the least recently used one goes first.

    Example:
        >>> import relmo
        >>> from relmo.features import FeatureStore
        >>> sentences = [["A", "cat", "."], ["Yes"]]
        >>> stored = FeatureStore("my-store").open(relmo.load("en"), sentences)
        >>> stored.batch([["Yes"]]).values.shape
        torch.Size([3, 1, 1, 512])
    """

    def __init__(
        self, directory: str | Path | None = None, *, max_bytes: int | None = None
    ) -> None:
        """Name the directory, which is made when something is stored.

        Args:
            directory: "features" in the user's cache directory when None.
            max_bytes: RELMO_CACHE_GB gigabytes when None, or 30.
        """
        self.directory = default_directory() if directory is None else Path(directory)
        self.max_bytes = datasets.bound_from_environment() if max_bytes is None else max_bytes
        if self.max_bytes < 1:
            raise ConfigError(f"max_bytes is {self.max_bytes}; expected 1 or more.")
        self._datasets = DatasetDirectory(self.directory, self.max_bytes)

    def open(
        self,
        features: Features | Model,
        sentences: Sentences,
        *,
        dtype: str = "float16",
        verify: bool = False,
    ) -> StoredFeatures:
        """The features of some sentences, computed now where they are not stored yet.

        Only one process computes; others that need the same data set wait for it.

        Args:
            features: what to compute with, if need be; of a loaded model, its `LiveFeatures`.
            sentences: tokenised, in any order; one that comes twice is stored once. Give the
                training, development and test part at once, as one data set.
            dtype: "float16" or "float32".
            verify: compare the checksums of all vectors. Otherwise that happens once, when the
                data set is first opened after it was filled.

        Raises:
            ConfigError: `features` are no features, or there is no such `dtype`.
            DataError: The store is too small, the disk is full, or a sentence is not tokens.
        """
        if dtype not in VALUES:
            raise ConfigError(f"dtype is {dtype!r:.40}; choose from {', '.join(VALUES)}.")
        features = _as_features(features)
        hashes = hash_sentences(sentences)
        distinct = np.unique(hashes)
        name = _dataset_name(features, dtype, distinct)
        with self._datasets.locked(name) as folder:
            try:
                stored = _read_complete(folder, features, dtype, distinct, verify)
            except FormatError as error:
                _drop_damaged(folder, error)
                stored = None
            if stored is None:
                self._fill(Fill(folder, features, Plan.of(sentences, hashes), dtype), folder)
                stored = StoredFeatures(folder, features.name)
            with suppress(OSError):
                os.utime(folder / MANIFEST)  # the time of the last use
            return stored

    def _fill(self, fill: Fill, folder: Path) -> None:
        if (folder / MANIFEST).exists():
            try:
                fill.resume(Manifest.read(folder))
            except FormatError as error:
                _drop_damaged(folder, error)
        else:
            datasets.wipe(folder)  # tables of a fill that was killed before its first part
        self._datasets.make_room(fill.manifest.n_bytes, folder.name)
        fill.run()


def default_directory() -> Path:
    """Where features are stored unless told otherwise."""
    return cache_directory() / "features"


class StoredFeatures:
    """Features that were computed before: reading them runs no biLM.

    Attributes:
        name: of the features.
        identity: of the features.
        n_layers: K.
        dim: D.
        folder: of the data set.
        n_sentences: how many distinct ones are stored.
        n_tokens: of these, without boundaries.

    Example:
        >>> import relmo
        >>> from relmo.features import FeatureStore
        >>> sentences = [["A", "cat", "."], ["Yes"]]
        >>> stored = FeatureStore("my-store").open(relmo.load("en"), sentences)
        >>> stored.n_sentences, stored.n_tokens
        (2, 4)
        >>> stored.batch(sentences, boundaries=True).mask.sum(dim=1).tolist()
        [5, 3]
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Map a complete data set; `FeatureStore.open` has locked the folder and checked it."""
        manifest = Manifest.read(folder)
        settings = manifest.settings
        self.folder, self.name, self.identity = folder, name, manifest.identity
        self.n_layers, self.dim = int(settings["n_layers"]), int(settings["dim"])
        self.n_sentences, self.n_tokens = int(settings["n_sentences"]), int(settings["n_tokens"])
        self._tables = {table.name: _map_table(folder, table) for table in manifest.tables}
        self._close = weakref.finalize(self, Reader(folder).close)

    def batch(self, sentences: Sentences, *, boundaries: bool = False) -> Layers:
        """The vectors of stored sentences, in any order, padded to the longest one.

        Args:
            sentences: the tokens of each.
            boundaries: with those of both boundaries, first and last in each row.

        Raises:
            DataError: A sentence is not in the data set.
        """
        inset = 0 if boundaries else 1
        spans = self._find(sentences)  # (B, 2)
        starts, lengths = spans[:, 0] + inset, spans[:, 1] - spans[:, 0] - 2 * inset
        places = np.arange(lengths.max(initial=0))  # (T,)
        mask = places < lengths[:, None]  # (B, T)
        # Padding reads a row that is read anyway, and is overwritten by zeros.
        rows = (starts[:, None] + np.where(mask, places, -inset)).ravel()  # (B · T,)
        values = self._gather(rows, np.flatnonzero(~mask.ravel()))
        return Layers(values.view(self.n_layers, *mask.shape, self.dim), torch.from_numpy(mask))

    def rows(self, sentences: Sentences) -> IntArray:
        """Return (N,) the row of each token, sentence after sentence, without boundaries.

        Raises:
            DataError: A sentence is not in the data set.
        """
        spans = self._find(sentences)
        return np.concatenate(
            [np.arange(start + 1, end - 1) for start, end in spans.tolist()]
            or [np.empty(0, np.int64)]
        )

    def tokens(self, rows: IntArray) -> Tensor:
        """Return the vectors (K, n, D) of single tokens, by their rows, in any order."""
        return self._gather(rows, np.empty(0, np.int64))

    def _gather(self, rows: IntArray, padding: IntArray) -> Tensor:
        """Copy some rows (K, n, D), zero where there is padding."""
        if not self._tables:
            raise DataError(f"The stored features {self.name!r} are closed. Open them again.")
        values = torch.empty(self.n_layers, len(rows), self.dim)
        n_by_word = min(1, self.n_layers - 1)
        if n_by_word:
            words = self._tables["words"][rows]
            values[0] = _gather(self._tables["layer0"], words, padding)
        x = _gather(self._tables["layers"], rows, padding)  # (n, K - 1, D)
        values[n_by_word:] = x.permute(1, 0, 2)
        return values

    def __reduce__(self) -> tuple[type[StoredFeatures], tuple[Path, str]]:
        # Worker processes of a data loader map the files themselves.
        return StoredFeatures, (self.folder, self.name)

    def close(self) -> None:
        """Say that the data set is no longer in use, which the end of the process does too."""
        self._close()
        self._tables = {}

    def _find(self, sentences: Sentences) -> IntArray:
        """(B, 2) the rows of each sentence."""
        if not self._tables:
            raise DataError(f"The stored features {self.name!r} are closed. Open them again.")
        hashes, wanted = self._tables["hashes"], hash_sentences(sentences)
        places = np.searchsorted(hashes, wanted)
        found = np.zeros(len(wanted), dtype=bool)
        inside = places < len(hashes)
        found[inside] = hashes[places[inside]] == wanted[inside]
        if not found.all():
            sentence = sentences[int(np.argmin(found))]
            raise DataError(
                f"The sentence {' '.join(sentence)!r:.200} is not among the {len(hashes):,} of the "
                "stored data set. Open the store with all sentences that are needed."
            )
        spans: IntArray = self._tables["spans"][places]
        return spans


def _as_features(given: Features | Model) -> Features:
    if isinstance(given, Model):
        return LiveFeatures(given)
    missing = [name for name in _MEMBERS if not hasattr(given, name)]
    if missing:
        raise ConfigError(
            f"{type(given).__name__} is no kind of features: it has no {', '.join(missing)}. "
            "Give a loaded model, LiveFeatures, StaticVectors or FunctionFeatures; "
            "of a list that open_features gave, open one at a time."
        )
    return given


def _dataset_name(features: Features, dtype: str, hashes: Hashes) -> str:
    """Hash of all that the vectors depend on."""
    settings = [KIND, features.identity, *dataset_settings(features, dtype, len(hashes)).items()]
    digest = hashlib.blake2b(repr(settings).encode("utf-8", "surrogatepass"), digest_size=16)
    digest.update(hashes.tobytes())
    return digest.hexdigest()


def _drop_damaged(folder: Path, error: FormatError) -> None:
    warnings.warn(
        f"Stored features are damaged, and are computed again: {error}",
        RelmoWarning,
        stacklevel=4,
    )
    datasets.wipe(folder)


def _read_complete(
    folder: Path, features: Features, dtype: str, hashes: Hashes, verify: bool
) -> StoredFeatures | None:
    """The data set of a folder, or None if it is not complete.

    Raises:
        FormatError: It is damaged.
    """
    if not (folder / MANIFEST).exists():
        return None
    manifest = Manifest.read(folder)
    expected = dataset_settings(features, dtype, len(hashes))
    found = {name: manifest.settings.get(name) for name in expected}
    layout = {table.name: (table.dtype, table.shape) for table in manifest.tables}
    if (
        (manifest.kind, manifest.identity, found) != (KIND, features.identity, expected)
        or layout != table_layout(features.n_layers, features.dim, dtype)
        or not isinstance(manifest.settings.get("n_tokens"), int)
    ):
        raise FormatError(f"{folder / MANIFEST} is of another data set.")
    manifest.check_sizes(folder)
    if not manifest.is_complete:
        return None
    verified = (folder / VERIFIED).exists()
    manifest.check_sums(folder, INDEX if verified and not verify else None)
    stored = StoredFeatures(folder, features.name)
    try:
        _check_index(stored, hashes)
    except FormatError:
        stored.close()  # some systems remove no file that is mapped
        raise
    if not verified:
        with suppress(OSError):
            (folder / VERIFIED).touch()
    return stored


def _check_index(stored: StoredFeatures, hashes: Hashes) -> None:
    tables, n_rows = stored._tables, len(stored._tables["layers"])
    spans = tables["spans"]
    if not np.array_equal(tables["hashes"], hashes) or not (
        len(spans) == len(hashes)
        and bool(np.all((spans[:, 0] >= 0) & (spans[:, 0] + 2 <= spans[:, 1])))
        and spans.max(initial=0) <= n_rows
    ):
        raise FormatError(f"The tables in {stored.folder} do not fit together.")
    if stored.n_layers > 1:
        words, n_words = tables["words"], len(tables["layer0"])
        if len(words) != n_rows or not 0 <= words.min(initial=0) <= words.max(initial=0) < n_words:
            raise FormatError(f"The words in {stored.folder} do not fit the rest.")


def _map_table(folder: Path, table: Table) -> np.ndarray:
    dtype, shape = np.dtype(DTYPES[table.dtype]), (table.n_rows, *table.shape)
    if not table.n_bytes:  # nothing to map
        return np.empty(shape, dtype)
    try:
        # As a plain array: a memmap's own methods make indexing slow.
        return np.memmap(folder / (table.name + TABLE_SUFFIX), dtype, "r", shape=shape).view(
            np.ndarray
        )
    except (OSError, ValueError) as error:
        raise FormatError(f"Cannot read {table.name} in {folder}: {error}.") from error


def _gather(table: np.ndarray, rows: np.ndarray, padding: IntArray) -> Tensor:
    """A copy of some rows, zero where there is padding."""
    x = table[rows]
    x[padding] = 0
    return torch.from_numpy(x)
