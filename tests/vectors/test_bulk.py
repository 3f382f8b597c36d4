"""Pipelines: order, errors from either end, processes, and threads that share a model."""

import threading

import numpy as np
import pytest
from conftest import close

from relmo.errors import DataError
from relmo.vectors.bulk import embed_lines, written_behind

LINES = [" ".join(f"w{(i * j) % 11}" for j in range(i % 9)) for i in range(60)]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lines_come_back_in_order(tiny, monkeypatch, workers):
    monkeypatch.setattr("relmo.inference.model.POOL_BYTES", 0)
    monkeypatch.setattr("relmo.inference.model.BATCH_TOKENS", 50)  # many pools
    found = list(embed_lines(tiny, LINES, layers="all", workers=workers))
    assert [line for line, _, _ in found] == LINES
    assert [tokens for _, tokens, _ in found] == [line.split() for line in LINES]
    for (_, _, vectors), expected in zip(found, tiny.embed(LINES, layers="all"), strict=True):
        assert close(vectors, expected)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_the_reader_raises_reaches_the_caller(tiny, monkeypatch, workers):
    monkeypatch.setattr("relmo.inference.model.POOL_BYTES", 0)
    monkeypatch.setattr("relmo.inference.model.BATCH_TOKENS", 4)

    def lines():
        yield from ("a b", "c d", "e f")
        raise DataError("line 4 is bad")

    found = []
    with pytest.raises(DataError, match="line 4 is bad"):
        found.extend(line for line, _, _ in embed_lines(tiny, lines(), workers=workers))
    assert found[:2] == ["a b", "c d"][: len(found[:2])]


def test_writing_behind_keeps_order_and_tells_failures():
    written = []
    with written_behind(written.append, 3) as write:
        for i in range(20):
            write(i)
    assert written == list(range(20))

    def fails(i):
        if i == 4:
            raise OSError("disk full")
        written.append(i)

    def write_many():
        with written_behind(fails, 3) as write:
            for i in range(100):
                write(i)

    with pytest.raises(OSError, match="disk full"):
        write_many()


def test_four_threads_share_one_model(tiny):
    """Each thread embeds its own sentences over and over; all get what they would get alone."""
    tiny._cache.capacity = 40  # so that threads push each other's tokens out
    work = [[f"t{thread}w{(i * 7) % 30} x{i} y" for i in range(25)] for thread in range(4)]
    expected = [tiny.embed(sentences, layers="all") for sentences in work]
    wrong = []

    def embed(thread):
        for _ in range(8):
            for found, right in zip(
                tiny.embed(work[thread], layers="all"), expected[thread], strict=True
            ):
                if not np.allclose(found, right, rtol=1e-5, atol=1e-6):
                    wrong.append(thread)

    threads = [threading.Thread(target=embed, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
