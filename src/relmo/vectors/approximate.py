"""Search among millions of vectors through faiss: it proposes rows, their own vectors decide.

The vectors lie in lists, one around each of up to 1,024 centres, a byte a number. A search looks
into the lists of the nearest centres alone and takes more rows than were asked for; the exact
table then gives their scores and their order. So scores are always exact, and what can be missed
is a row in a list that was not looked into. In how many it looks is found out when the index is
built: as many as a sample of its own vectors needs. Centres and sample are of a bounded number of
vectors, and the work for each vector is the same however many there are: building takes time in
proportion to them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.arrays import Array, IntArray
from relmo.errors import ConfigError, DataError, FormatError
from relmo.vectors.index_tables import Tables

FILE_NAME = "faiss.index"
ALL_BELOW = 10_000  # vectors: fewer are compared one by one
N_LISTS = 1024
FEWEST_PROBES = 16  # lists that a search looks into
RECALL = 0.98  # of the ten nearest, that is aimed at
MORE = 4  # times as many rows are proposed as were asked for
_POINTS_A_LIST = 40  # to train with; with fewer faiss warns that centres are poor
_QUERIES = 256  # at a time
_TOLERANCE = 1e-6  # of cosines: sums in another order differ by less


def import_faiss() -> Any:
    """The package, set to as many threads as PyTorch has."""
    try:
        import faiss
    except ImportError:
        raise ConfigError(
            "Approximate search needs the package faiss, which is not installed. Install it with: "
            "pip install 'relmo[faiss]'. Or do without: build without --approximate, search with "
            "--exact."
        ) from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


class Approximate:
    """An index of faiss, with the tables that it is of."""

    def __init__(self, index: Any, tables: Tables) -> None:
        self._index, self._tables = index, tables

    def nearest(self, queries: Array, k: int) -> tuple[Array, IntArray]:
        """Scores and rows as `Tables.nearest` gives them, some perhaps missed."""
        n = len(self._tables)
        k = min(k, n)
        _, proposed = self._index.search(queries, min(MORE * k, n))  # (Q, c), -1 for none
        best, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for i, query in enumerate(queries):
            found = np.sort(proposed[i][(proposed[i] >= 0) & (proposed[i] < n)])
            if len(found) < k:  # the lists hold too few
                (best[i],), (rows[i],) = self._tables.nearest(query[None], k)
                continue
            scores = self._tables.vectors[found] @ query
            order = np.argsort(-scores, kind="stable")[:k]
            best[i], rows[i] = scores[order], found[order]
        self._tables.release()
        return best, rows

    def recall(self, k: int, n_queries: int, seed: int = 0) -> float:
        """The share of the k nearest that is found, of a sample of the vectors themselves.

        A vector does not count for itself. Others that are as near as the k-th do count.
        """
        n = len(self._tables)
        if n == 1:
            return 1.0  # there is no other to find
        sample = np.random.default_rng(seed).choice(n, min(n_queries, n), replace=False)
        n_found = n_there = 0
        for start in range(0, len(sample), _QUERIES):
            own = sample[start : start + _QUERIES]
            queries = self._tables.vectors[own]
            expected, _ = self._tables.nearest(queries, k + 1)
            scores, rows = self.nearest(queries, k + 1)
            near = (scores >= expected[:, -1:] - _TOLERANCE) & (rows != own[:, None])
            most = expected.shape[1] - 1
            n_found += int(np.minimum(near.sum(axis=1), most).sum())
            n_there += most * len(own)
        return n_found / n_there


def write_approximate(folder: Path, tables: Tables) -> str:
    """Write faiss's file beside the tables; the digest of its bytes."""
    faiss = import_faiss()
    n, dim = tables.vectors.shape
    index: Any = faiss.IndexFlatIP(dim)
    if n >= ALL_BELOW:
        n_lists = min(N_LISTS, n // _POINTS_A_LIST)
        index = faiss.index_factory(dim, f"IVF{n_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
        index.cp.spherical, index.cp.niter = True, 5
        step = n // (_POINTS_A_LIST * n_lists)
        index.train(np.concatenate([b[-start % step :: step] for start, b in tables.blocks()]))
    for _, block in tables.blocks():
        index.add(block)
    if n >= ALL_BELOW:
        index.nprobe = FEWEST_PROBES
        while index.nprobe < n_lists and Approximate(index, tables).recall(10, 200, 1) < RECALL:
            index.nprobe = min(2 * index.nprobe, n_lists)
    path = folder / FILE_NAME
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise DataError(f"Cannot write {path.name} ({error}). Free some space.") from None
    return _digest(path)


def read_approximate(folder: Path, digest: str, tables: Tables) -> Approximate:
    """What `write_approximate` wrote, mapped into memory."""
    faiss, path = import_faiss(), folder / FILE_NAME
    try:
        # faiss trusts what it reads, so it gets to see what was written here or nothing.
        if _digest(path) != digest:
            raise ValueError("the digest is another")
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except (OSError, RuntimeError, ValueError) as error:
        raise FormatError(
            f"{path} is damaged ({error}). Build the index again, or search with --exact."
        ) from None
    if (index.ntotal, index.d) != tables.vectors.shape:
        raise FormatError(f"{path} is not of the vectors beside it. Build the index again.")
    return Approximate(index, tables)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
