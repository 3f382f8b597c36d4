"""Prefetching is bounded, keeps the order, and ends with its consumer."""

import itertools
import threading
import time

import pytest

from relmo.prefetch import prefetch


def test_prefetching_is_bounded_and_ends_with_the_consumer():
    made = itertools.count()
    before = threading.active_count()
    stream = prefetch((next(made) for _ in itertools.repeat(None)), 3)
    assert [next(stream) for _ in range(5)] == [0, 1, 2, 3, 4]
    time.sleep(0.05)
    assert next(made) <= 5 + 3 + 2
    stream.close()
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert threading.active_count() == before


def test_what_the_other_thread_raises_is_raised_in_its_place():
    def items():
        yield 1
        raise OSError("gone")

    stream = prefetch(items(), 2)
    assert next(stream) == 1
    with pytest.raises(OSError, match="gone"):
        next(stream)


def test_closing_can_wait_for_the_other_thread():
    busy = threading.Event()

    def items():
        for i in itertools.count():
            busy.set()
            time.sleep(0.02)
            busy.clear()
            yield i

    for n in (1, 3):
        stream = prefetch(items(), n, joined=True)
        assert next(stream) == 0
        stream.close()
        assert not busy.is_set()
        assert not [t for t in threading.enumerate() if t.name == "relmo-reader"]
