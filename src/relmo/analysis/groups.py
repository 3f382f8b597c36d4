"""Groups of vectors: how many there are, which vector is in which, and where to draw it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relmo.arrays import Array, IntArray
from relmo.errors import ConfigError, DataError

MIN_TO_LEVEL = 4  # vectors, of either kind
N_COMPONENTS = 16  # in which groups are looked for
MOST_GROUPS = 6  # when the number is chosen
N_STARTS = 4  # of k-means, of which the best is taken
N_DRAWS = 4  # of vectors without groups, to compare with
MIN_TO_UNFOLD = 100  # vectors; fewer are drawn by their principal components
MIN_GAIN = 0.05  # of the silhouette over theirs


def import_sklearn() -> Any:
    """scikit-learn, or what to do where it is not installed."""
    try:
        import sklearn.cluster
        import sklearn.decomposition
        import sklearn.manifold
        import sklearn.metrics
    except ImportError:
        raise ConfigError(
            "Grouping occurrences needs the package scikit-learn, which is not installed. Install "
            "it with: pip install 'relmo[senses]'"
        ) from None
    return sklearn


def level(vectors: Array, first: NDArray[np.bool_]) -> Array:
    """Move the vectors of words that begin a sentence (N,) onto the mean of the others.

    Else they, with their capitals, would be the first group of most words.
    """
    if min(first.sum(), (~first).sum()) < MIN_TO_LEVEL:
        return vectors
    shift = vectors[~first].mean(axis=0) - vectors[first].mean(axis=0)
    return np.asarray(vectors + first[:, None] * shift, np.float32)


def reduce(vectors: Array) -> Array:
    """The first principal components of vectors (N, D) that are made equally long before."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    n = min(N_COMPONENTS, *vectors.shape)
    pca = import_sklearn().decomposition.PCA(n, svd_solver="full")
    found: Array = pca.fit_transform(vectors / np.maximum(lengths, 1e-12))
    return found


def group(vectors: Array, n_groups: int | None = None, seed: int = 0) -> IntArray:
    """The group of each vector (N, d), numbered from the largest.

    Args:
        vectors: reduced ones.
        n_groups: how many groups to make; chosen from the data when None.
        seed: of what is random in it.
    """
    n_distinct = len(np.unique(vectors.round(5), axis=0))
    if n_groups is not None and not 1 <= n_groups <= n_distinct:
        raise DataError(
            f"Cannot make {n_groups} groups of {len(vectors)} occurrences with {n_distinct} "
            "different vectors. Ask for fewer, or give more text; layer 0 knows no context."
        )
    most = min(MOST_GROUPS, n_distinct, len(vectors) // 2)
    with _one_thread():
        labels = _k_means(vectors, n_groups or _choose_number(vectors, most, seed), seed)
    by_size = np.argsort(-np.bincount(labels), kind="stable")
    rank: IntArray = np.argsort(by_size)[labels]
    return rank


def distances(vectors: Array) -> Array:
    """Of each vector (N, d) from the mean of all."""
    found: Array = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
    return found


def project(vectors: Array, seed: int = 0) -> Array:
    """A point (N, 2) for each reduced vector, near those of vectors that are near.

    By t-SNE, which knows nothing of groups: where these lie apart, it is not by its doing. Few
    vectors get their two principal components.
    """
    if len(vectors) < MIN_TO_UNFOLD or not vectors.any():
        return vectors[:, :2]
    with _one_thread():
        model = import_sklearn().manifold.TSNE(2, init="pca", random_state=seed)
        points: Array = model.fit_transform(vectors)
    return points


def _one_thread() -> Any:
    """For work in small pieces: several threads would wait for each other most of the time."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    return threadpool_limits(1)


def _choose_number(vectors: Array, most: int, seed: int) -> int:
    """How many groups stand out from what vectors of one group would give by chance.

    K-means finds groups in anything. Vectors drawn from one normal distribution with the same
    covariance show how distinct (by the silhouette) groups of none are; the number that exceeds
    theirs most is taken, or one if none does.
    """
    rng = np.random.default_rng(seed)
    deviation = vectors.std(axis=0)  # of principal components, so this is all of the covariance
    draws = [rng.normal(0, deviation, vectors.shape) for _ in range(N_DRAWS)]
    gains = {1: MIN_GAIN}
    for n in range(2, most + 1):
        by_chance = [_silhouette(draw, n, seed) for draw in draws]
        gains[n] = _silhouette(vectors, n, seed) - sum(by_chance) / N_DRAWS
    return max(gains, key=gains.__getitem__)


def _silhouette(vectors: Any, n: int, seed: int) -> float:
    labels = _k_means(vectors, n, seed)
    return float(import_sklearn().metrics.silhouette_score(vectors, labels))


def _k_means(vectors: Any, n: int, seed: int) -> IntArray:
    model = import_sklearn().cluster.KMeans(n, n_init=N_STARTS, random_state=seed)
    labels: IntArray = model.fit_predict(vectors).astype(np.int64)
    return labels
