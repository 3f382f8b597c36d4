"""Pipelines: order, errors from either end, processes, and threads that share a model."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import close
from tolerance import network_rounding

from relmo.errors import ConfigError, DataError
from relmo.vectors.bulk import QUEUED_POOLS, embed_file, embed_lines, written_behind

LINES = [" ".join(f"w{(i * j) % 11}" for j in range(i % 9)) for i in range(60)]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_lines_come_back_in_order(tiny, monkeypatch, workers):
    monkeypatch.setattr("relmo.inference.model.POOL_BYTES", 0)
    monkeypatch.setattr("relmo.inference.model.BATCH_TOKENS", 50)  # many pools
    found = list(embed_lines(tiny, LINES, layers="all", workers=workers))
    assert [line for line, _, _ in found] == LINES
    assert [tokens for _, tokens, _ in found] == [line.split() for line in LINES]
    bound = network_rounding(tiny.config, 8)
    for (_, _, vectors), expected in zip(found, tiny.embed(LINES, layers="all"), strict=True):
        assert close(vectors, expected, atol=bound)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_the_reader_raises_reaches_the_caller(tiny, monkeypatch, workers):
    monkeypatch.setattr("relmo.inference.model.POOL_BYTES", 0)
    monkeypatch.setattr("relmo.inference.model.BATCH_TOKENS", 4)

    good = [f"a{i} b" for i in range(40)]  # two of them are a pool

    def lines():
        yield from good
        raise DataError("line 41 is bad")

    found = []
    with pytest.raises(DataError, match="line 41 is bad"):
        found.extend(line for line, _, _ in embed_lines(tiny, lines(), workers=workers))
    assert found == good[: len(found)]
    # All came out but for what was still under way: a pool or two per worker and queue.
    assert len(found) >= 40 - 2 * (2 * workers + 2 * QUEUED_POOLS)


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
    bound = network_rounding(tiny.config, 3)

    def embed(thread):
        return [
            close(found, right, atol=bound)
            for _ in range(8)
            for found, right in zip(
                tiny.embed(work[thread], layers="all"), expected[thread], strict=True
            )
        ]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(embed, range(4))) == [[True] * 8 * 25] * 4


def test_no_text_to_embed(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"Expected a file, directory, .* found None"):
        embed_file(None, tmp_path / "o.npz", tiny)


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path):
    """Its workers die at their start; a model larger than a pipe must not wait for them."""
    (tmp_path / "text.txt").write_text("The cat sat .\n")
    script = tmp_path / "script.py"
    script.write_text('import relmo; relmo.embed_file("text.txt", "o.npz", "en", workers=2)')
    command = [sys.executable, "-W", "always::ResourceWarning", script]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 1
    assert "A worker process has died" in found.stderr.splitlines()[-1]
    assert "ResourceWarning: unclosed file" not in found.stderr
    assert not (tmp_path / "o.npz").exists()
