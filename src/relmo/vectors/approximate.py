"""Approximate nearest-neighbour search by faiss, with exact re-ranking.

The faiss index is an inverted file (IVF) of up to 1,024 lists, one per centroid, with vectors
quantised to one byte per component. A search probes the lists of the nearest centroids and takes
more candidates than were asked for. The exact vectors then re-rank the candidates. So scores are
always exact; search can only miss rows in lists that were not probed. The number of probes is
chosen when the index is built, such that a sample of its own vectors reaches the target recall. As
the number of centroids and the sample are bounded, building takes time linear in the vectors.
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
ALL_BELOW = 10_000  # vectors: fewer are searched by brute force
N_LISTS = 1024
FEWEST_PROBES = 16  # lists that a search probes at least
RECALL = 0.98  # target recall@10
MORE = 4  # candidates per hit
_POINTS_A_LIST = 40  # to train with; with fewer, faiss warns of poor centroids
_QUERIES = 256  # per search
_TOLERANCE = 1e-6  # of cosines: rounding differs by less


def import_faiss() -> Any:
    """Import faiss, set to as many threads as PyTorch has."""
    try:
        import faiss
    except ImportError:
        raise ConfigError(
            "Approximate search needs the package faiss, which is not installed. Install it with: "
            "pip install 'relmo[faiss]'. Or use exact search.",
            settings=["approximate", "exact"],
        ) from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


class Approximate:
    """A faiss index, with the exact tables that it was built from."""

    def __init__(self, index: Any, tables: Tables) -> None:
        self._index, self._tables = index, tables

    def nearest(self, queries: Array, k: int) -> tuple[Array, IntArray]:
        """Scores and rows as from `Tables.nearest`, with some perhaps missed."""
        n = len(self._tables)
        k = min(k, n)
        _, proposed = self._index.search(queries, min(MORE * k, n))  # (Q, c), -1 for none
        best, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for i, query in enumerate(queries):
            found = np.sort(proposed[i][(proposed[i] >= 0) & (proposed[i] < n)])
            if len(found) < k:  # the probed lists hold too few
                (best[i],), (rows[i],) = self._tables.nearest(query[None], k)
                continue
            scores = self._tables.vectors[found] @ query
            order = np.argsort(-scores, kind="stable")[:k]
            best[i], rows[i] = scores[order], found[order]
        self._tables.release()
        return best, rows

    def recall(self, k: int, n_queries: int, seed: int = 0) -> float:
        """Recall@k, with a sample of the vectors themselves as queries.

        A vector does not count as its own neighbour. Others that are as near as the k-th do count.
        """
        n = len(self._tables)
        if n == 1:
            return 1.0  # there is no neighbour to find
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
    """Write the faiss index beside the tables; return the digest of its bytes."""
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
    """Read what `write_approximate` wrote, memory-mapped."""
    faiss, path = import_faiss(), folder / FILE_NAME
    try:
        # faiss trusts its input, so it only reads a file with the recorded digest.
        if _digest(path) != digest:
            raise ValueError("its digest is another one")
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except (OSError, RuntimeError, ValueError) as error:
        raise FormatError(
            f"{path} is damaged ({error}). Build the index again, or use exact search.",
            settings=["exact"],
        ) from None
    if (index.ntotal, index.d) != tables.vectors.shape:
        raise FormatError(
            f"{path} does not belong to the vectors beside it. Build the index again."
        )
    return Approximate(index, tables)


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
