"""Search through faiss: exact where there is little, nearly so where there is much."""

import sys

import numpy as np
import pytest
import torch
from tolerance import rounding

from relmo.errors import ConfigError, FormatError
from relmo.vectors import approximate
from relmo.vectors.index import VectorIndex, write_index

faiss = pytest.importorskip("faiss", reason="needs relmo[faiss]")
DIM = 16
COSINE = rounding(3 * DIM)  # two lengths and a product


def clustered(n, seed=0):
    """Sentences of five tokens around forty directions."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((40, DIM))
    vectors = centres[rng.integers(0, 40, n)] + rng.standard_normal((n, DIM))
    for number in range(n // 5):
        tokens = [f"{number}-{place}" for place in range(5)]
        yield tokens, vectors[5 * number : 5 * number + 5].astype(np.float32)


@pytest.fixture
def lists(monkeypatch):
    """As if there were many vectors."""
    monkeypatch.setattr(approximate, "ALL_BELOW", 1000)
    monkeypatch.setattr(approximate, "N_LISTS", 50)
    monkeypatch.setattr(approximate, "FEWEST_PROBES", 12)
    monkeypatch.setattr(approximate, "RECALL", 0)


@pytest.fixture
def build(tmp_path):
    def build(n, name="index"):
        return write_index(tmp_path / name, clustered(n), about={}, approximate=True)

    return build


def queries(n=5):
    return np.random.default_rng(1).standard_normal((n, DIM)).astype(np.float32)


def shown(found):
    return [[(hit.tokens, hit.place) for hit in hits] for hits in found]


def test_few_vectors_are_all_compared(build):
    index = build(200)
    assert index.is_approximate
    for k in (1, 10, 200, 201):
        found, expected = index.search(queries(), k), index.search(queries(), k, exact=True)
        assert shown(found) == shown(expected)
        for some, all_ in zip(found, expected, strict=True):
            assert [hit.score for hit in some] == pytest.approx([h.score for h in all_], abs=COSINE)
        assert index.recall(k) == 1


@pytest.mark.usefixtures("lists")
def test_many_are_nearly_all_found(build, monkeypatch):
    monkeypatch.setattr(approximate, "FEWEST_PROBES", 1)
    monkeypatch.setattr(approximate, "RECALL", 0.98)
    index = build(1200)
    assert 0.95 <= index.recall(10, n_queries=300) < 1
    assert 1 < index._approximate._index.nprobe < 50  # as many as are needed
    monkeypatch.setattr(approximate, "RECALL", 2)  # never reached: all lists are looked into
    everything = build(1200, "everything")
    assert shown(everything.search(queries())) == shown(index.search(queries(), exact=True))
    assert everything.recall() == 1


@pytest.mark.usefixtures("lists")
def test_recall_is_the_share_of_the_nearest_that_is_found(build, monkeypatch):
    monkeypatch.setattr(approximate, "FEWEST_PROBES", 1)
    index = build(2000)
    rows = np.random.default_rng(0).choice(2000, 50, replace=False)
    vectors = index._tables.vectors[rows]
    own = [(tuple(f"{row // 5}-{place}" for place in range(5)), row % 5) for row in rows.tolist()]
    found, expected = shown(index.search(vectors, 11)), shown(index.search(vectors, 11, exact=True))
    shares = [
        len(set(some) & set(all_) - {one}) / 10
        for some, all_, one in zip(found, expected, own, strict=True)
    ]
    assert 0.1 < index.recall(10, n_queries=50) < 0.9
    assert index.recall(10, n_queries=50) == pytest.approx(np.mean(shares))


@pytest.mark.usefixtures("lists")
def test_scores_are_those_of_exact_search_and_k_are_found(build):
    index = build(2000)
    for k in (10, 1000):  # the lists that are looked into do not hold so many
        found, expected = index.search(queries(3), k), index.search(queries(3), k, exact=True)
        for some, all_ in zip(found, expected, strict=True):
            scores = {(hit.tokens, hit.place): hit.score for hit in all_}
            both = [hit for hit in some if (hit.tokens, hit.place) in scores]
            assert len(some) == len(set(shown([some])[0])) == k
            assert len(both) >= 0.8 * k
            assert all(abs(h.score - scores[h.tokens, h.place]) < COSINE for h in both)
            assert [hit.score for hit in some] == sorted((h.score for h in some), reverse=True)


@pytest.mark.usefixtures("lists")
def test_a_sentence_is_left_out(build):
    index = build(1000)
    tokens, vectors = next(clustered(1000))
    ((first, *_),) = index.search(vectors[:1])
    assert (first.tokens, first.place) == (tuple(tokens), 0)
    (hits,) = index.search(vectors[:1], without=tokens)
    assert len(hits) == 10
    assert tuple(tokens) not in {hit.tokens for hit in hits}


@pytest.mark.usefixtures("lists")
def test_same_vectors_same_file(build, tmp_path):
    build(1000, "one")
    build(1000, "two")
    one, two = ((tmp_path / name / "faiss.index").read_bytes() for name in ("one", "two"))
    assert one == two


def test_equal_vectors_count_as_found(tmp_path, lists):
    entries = [([f"{i}"], np.ones((1, DIM))) for i in range(1200)]
    assert write_index(tmp_path / "index", entries, about={}, approximate=True).recall() == 1


@pytest.mark.usefixtures("lists")
@pytest.mark.parametrize("n", [500, 1000])
def test_a_damaged_file_is_refused_and_exact_search_works(build, n):
    index = build(n)
    file = index._path / "faiss.index"
    data = file.read_bytes()
    other = (build(n + 5, "other")._path / "faiss.index").read_bytes()
    flipped = data[:9] + bytes([data[9] ^ 0xFF]) + data[10:]
    for damaged in (b"", data[: len(data) // 2], data[:-1], flipped, other, None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        again = VectorIndex(index._path)
        with pytest.raises(FormatError, match=r"damaged.*exact search"):
            again.search(queries())
        assert len(again.search(queries(), exact=True)[0]) == 10


def test_a_file_of_other_vectors_is_refused(build):
    """Even one that the digest speaks for."""
    index, other = build(500), build(505, "other")
    for name in ("faiss.index", "index.json"):
        text = (other._path / name).read_bytes().replace(b'"vectors": 505', b'"vectors": 500')
        (index._path / name).write_bytes(text)
    with pytest.raises(FormatError, match="does not belong to the vectors"):
        VectorIndex(index._path).search(queries())


def test_without_faiss(build, tmp_path, monkeypatch):
    index = build(500)
    monkeypatch.setitem(sys.modules, "faiss", None)
    again = VectorIndex(index._path)
    with pytest.raises(ConfigError, match=r"pip install 'relmo\[faiss\]'.*exact search"):
        again.search(queries())
    assert len(again.search(queries(), exact=True)) == 5

    def never():
        raise AssertionError("work was done before the package was looked for")
        yield

    with pytest.raises(ConfigError, match="not installed"):
        write_index(tmp_path / "new", never(), about={}, approximate=True)


def test_faiss_has_as_many_threads_as_torch():
    before = torch.get_num_threads()
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            assert approximate.import_faiss().omp_get_max_threads() == n_threads
    finally:
        torch.set_num_threads(before)


def test_nothing_to_measure(tmp_path, build):
    exact = write_index(tmp_path / "exact", clustered(10), about={})
    assert not exact.is_approximate
    with pytest.raises(ConfigError, match="has no approximate search"):
        exact.recall()
    with pytest.raises(ConfigError, match="1 or more"):
        build(10).recall(0)
    one = [(["one"], np.ones((1, DIM)))]
    assert write_index(tmp_path / "one", one, about={}, approximate=True).recall() == 1
