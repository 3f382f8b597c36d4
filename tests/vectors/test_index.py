"""Nearest occurrences, against brute force."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import rounding

import relmo
from relmo.errors import ConfigError, DataError, FormatError
from relmo.vectors import index_tables
from relmo.vectors.index import VectorIndex, write_index


def sentences(n, seed=0, dim=5):
    rng = np.random.default_rng(seed)
    for number in range(n):
        tokens = [f"w{number}", *rng.choice(["the", "cat", "sat"], rng.integers(1, 6))]
        yield tokens, rng.standard_normal((len(tokens), dim)).astype(np.float32) * 9


def brute_force(entries, query, k):
    flat = [(t, p, v[p]) for t, v in entries for p in range(len(t))]
    unit = np.stack([v / np.linalg.norm(v) for _, _, v in flat])
    scores = unit @ (query / np.linalg.norm(query))
    return [(scores[i], tuple(flat[i][0]), flat[i][1]) for i in np.argsort(-scores)[:k]]


@pytest.mark.parametrize("block", [1, 7, 1 << 15])
def test_equals_brute_force(tmp_path, monkeypatch, block):
    monkeypatch.setattr(index_tables, "BLOCK", block)
    entries = list(sentences(30))
    index = write_index(tmp_path / "index", entries, about={"model": "a test"})
    queries = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    for query, hits in zip(queries, index.search(queries, k=9), strict=True):
        expected = brute_force(entries, query, 9)
        assert [(hit.tokens, hit.place) for hit in hits] == [e[1:] for e in expected]
        assert np.allclose(
            [hit.score for hit in hits], [e[0] for e in expected], atol=rounding(3 * 5)
        )
    assert len(index) == sum(len(tokens) for tokens, _ in entries)
    assert index.about == {"model": "a test"}


@given(data=st.data(), n=st.integers(1, 60), k=st.integers(1, 12), block=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_equal_scores_come_by_row(tmp_path_factory, data, n, k, block):
    """Whatever the order in which vectors come, and however many are alike."""
    axes = np.vstack([np.eye(3), -np.eye(3)]).astype(np.float32)  # so that cosines are exact
    vectors = axes[data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))]
    queries = axes[data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))]
    folder = tmp_path_factory.mktemp("index") / "index"
    entries = [([str(i)], vectors[i : i + 1]) for i in range(n)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_tables, "BLOCK", block)
        found = write_index(folder, entries, about={}).search(queries, k)
    expected = np.argsort(-queries @ vectors.T, axis=1, kind="stable")[:, :k]
    assert [[int(hit.word) for hit in hits] for hits in found] == expected.tolist()


@given(st.integers(1, 40), st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_never_more_than_there_are(tmp_path_factory, n, k):
    folder = tmp_path_factory.mktemp("index")
    index = write_index(folder / "index", sentences(n), about={})
    (hits,) = index.search(np.ones((1, 5)), k)
    assert len(hits) == min(k, len(index))
    assert len({(hit.tokens, hit.place) for hit in hits}) == len(hits)


def test_the_querys_own_sentence_is_left_out(tmp_path):
    entries = list(sentences(10))
    index = write_index(tmp_path / "index", entries, about={})
    tokens, vectors = entries[3]
    (hits,) = index.search(vectors[:1], k=5)
    assert hits[0].tokens == tuple(tokens)
    assert hits[0].word == tokens[0]
    assert hits[0].score == pytest.approx(1, abs=rounding(3 * 5))
    (others,) = index.search(vectors[:1], k=5, without=tokens)
    assert len(others) == 5
    assert tuple(tokens) not in {hit.tokens for hit in others}


def test_sentences_come_once_and_stop_words_never(tmp_path):
    entries = [(["The", "cat"], np.eye(2)), (["The", "cat"], np.eye(2)), (["the"], np.ones((1, 2)))]
    index = write_index(tmp_path / "one", entries, about={}, stop_words={"the"})
    assert len(index) == 1
    index = write_index(tmp_path / "two", entries, about={}, words={"the"})
    assert [hit.word for hit in index.search(np.ones((1, 2)), 9)[0]] == ["the", "The"]


def test_more_queries_than_are_searched_at_a_time(tmp_path, monkeypatch):
    index = write_index(tmp_path / "index", sentences(20), about={})
    queries = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    expected = index.search(queries, 3)
    monkeypatch.setattr("relmo.vectors.index.QUERIES", 3)
    found = index.search(queries, 3)
    assert [[(h.tokens, h.place) for h in hits] for hits in found] == [
        [(h.tokens, h.place) for h in hits] for hits in expected
    ]
    scores = [[hit.score for hit in hits] for hits in found]
    then = [[hit.score for hit in hits] for hits in expected]
    np.testing.assert_allclose(scores, then, rtol=0, atol=rounding(5))  # products of other shapes
    assert index.search(queries[:0], 3) == []


def test_a_token_that_is_no_unicode(tmp_path):
    index = write_index(tmp_path / "index", [(["\ud800"], np.ones((1, 2)))], about={})
    assert index.search(np.ones((1, 2)))[0][0].tokens == ("\ud800",)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_bounded(tmp_path, monkeypatch):
    vectors = np.random.default_rng(0).standard_normal((1 << 14, 256)).astype(np.float32)  # 16 MB
    write_index(tmp_path / "index", [([str(i) for i in range(len(vectors))], vectors)], about={})
    monkeypatch.setattr(index_tables, "BLOCK", 1 << 10)
    monkeypatch.setattr(index_tables, "RESIDENT_BYTES", 1 << 21)

    def mapped_bytes():
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("RssFile:")[1].split()[0])

    tables = index_tables.Tables(tmp_path / "index", *vectors.shape)
    before, peak, total = mapped_bytes(), 0, 0.0
    for _, block in tables.blocks():
        total += float(block.sum(dtype=np.float64))
        peak = max(peak, mapped_bytes() - before)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert total == pytest.approx(unit.sum(dtype=np.float64), abs=1e-2)
    assert peak < 8 << 20


def test_it_is_public_and_opens_again(tmp_path):
    write_index(tmp_path / "index", sentences(3), about={"layer": 2})
    again = relmo.VectorIndex(tmp_path / "index")
    assert again.about == {"layer": 2}
    assert again.dim == 5


@pytest.mark.parametrize(
    "damage", ["no index.json", "version", "cut", "other numbers", "other types", "no table"]
)
def test_damaged_ones_are_refused(tmp_path, damage):
    folder = tmp_path / "index"
    write_index(folder, sentences(3), about={})
    path = folder / "index.json"
    values = json.loads(path.read_text())
    if damage == "no index.json":
        path.unlink()
    elif damage == "version":
        path.write_text(json.dumps({**values, "format_version": 9}))
    elif damage == "other numbers":
        path.write_text(json.dumps({**values, "vectors": 2}))
    else:
        table = folder / "vectors.safetensors"
        data = table.read_bytes()
        if damage == "cut":
            table.write_bytes(data[:-4])
        elif damage == "other types":
            table.write_bytes(data.replace(b'"F32"', b'"I32"'))
        else:
            table.write_bytes(data.replace(b'"place"', b'"plaza"'))
    with pytest.raises(FormatError, match=str(folder)):
        VectorIndex(folder)


@pytest.mark.parametrize("line", [b"", b"[]\n", b"7\n", b'["cut\n', b"\xff\n"])
def test_damaged_contexts_are_named(tmp_path, line):
    index = write_index(tmp_path / "index", [(["one"], np.ones((1, 2)))], about={})
    (tmp_path / "index" / "contexts.jsonl").write_bytes(line)
    with pytest.raises(FormatError, match="damaged index"):
        index.search(np.ones((1, 2)))


def test_mistakes(tmp_path):
    index = write_index(tmp_path / "index", sentences(3), about={})
    with pytest.raises(ConfigError, match="k is 0"):
        index.search(np.ones((1, 5)), 0)
    with pytest.raises(ConfigError, match="belong to different models"):
        index.search(np.ones((1, 6)), 1)
    with pytest.raises(DataError, match="no word to index"):
        write_index(tmp_path / "empty", [], about={})
    assert not (tmp_path / "empty").exists()
    with pytest.raises(DataError, match="not empty"):
        write_index(tmp_path / "index", sentences(3), about={})
