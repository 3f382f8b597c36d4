"""Examples: each once per epoch, in an order that a seed and a position determine."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError
from relmo.train import examples as module
from relmo.train.examples import Examples
from relmo.train.world import World

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=60)
limits = st.fixed_dictionaries(
    {"batch_size": st.none() | st.integers(1, 9), "batch_length": st.none() | st.integers(1, 40)}
).filter(lambda found: any(found.values()))


def build(lengths, limits, **options):
    """Examples are pairs of number and length; batches are lists of them."""
    pairs = list(enumerate(lengths))
    return Examples(pairs, list, length=lambda pair: pair[1], **limits, **options)


def one_epoch(data, epoch=0):
    found = []
    for batch, position in data.batches({"epoch": epoch, "batch": 0}):
        found.append(batch)
        if position["epoch"] > epoch:
            assert position == {"epoch": epoch + 1, "batch": 0}
            return found
        assert position == {"epoch": epoch, "batch": len(found)}
    raise AssertionError("batches ended")


def fits(batch, limits):
    longest = max(length for _, length in batch)
    size, length = limits["batch_size"], limits["batch_length"]
    return (size is None or len(batch) <= size) and (
        length is None or len(batch) * longest <= length or len(batch) == 1
    )


@given(sizes, limits, st.integers(0, 3), st.integers(0, 5))
def test_every_example_once_per_epoch_within_the_limits(lengths, limits, seed, epoch):
    data = build(lengths, limits, seed=seed)
    batches = one_epoch(data, epoch)
    assert sorted(pair for batch in batches for pair in batch) == list(enumerate(lengths))
    assert all(fits(batch, limits) for batch in batches)
    assert (len(data), data.total_length) == (len(lengths), sum(lengths))


@given(sizes, limits, st.integers(0, 3), st.integers(0, 20))
def test_the_same_seed_gives_the_same_order_from_any_position(lengths, limits, seed, n):
    whole = list(islice(build(lengths, limits, seed=seed).batches({}), n + 15))
    position = whole[n - 1][1] if n else {}
    rest = list(islice(build(lengths, limits, seed=seed).batches(position), 15))
    assert rest == whole[n:]


@given(sizes, limits)
def test_in_order_for_evaluation(lengths, limits):
    batches = list(build(lengths, limits).in_order())
    assert [pair for batch in batches for pair in batch] == list(enumerate(lengths))
    assert all(fits(batch, limits) for batch in batches)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=300), st.integers(1, 16))
def test_buckets_bound_padding(lengths, size):
    """Sorted and cut, the differences within batches add up to at most the whole range."""
    batches = one_epoch(build(lengths, {"batch_size": size, "batch_length": None}))
    padding = sum(max(n for _, n in b) - n for b in batches for _, n in b)
    n_pools = -(-len(lengths) // (module.POOL_BATCHES * size))
    assert padding <= n_pools * size * (max(lengths) - min(lengths))


@given(sizes, limits, st.integers(1, 5), st.integers(0, 2))
def test_ranks_share_every_batch(lengths, limits, n_ranks, epoch):
    lengths = lengths + [1] * n_ranks
    parts = [
        one_epoch(build(lengths, limits, world=World(rank, n_ranks)), epoch)
        for rank in range(n_ranks)
    ]
    assert len({len(part) for part in parts}) == 1
    assert all(batch for part in parts for batch in part)  # nobody is left without an example
    together = sorted(pair for part in parts for batch in part for pair in batch)
    assert together == list(enumerate(lengths))


def test_pools_that_end_with_too_few_for_all_ranks(monkeypatch):
    monkeypatch.setattr(module, "POOL_BATCHES", 2)
    parts = [
        one_epoch(build([1] * 15, {"batch_size": 4, "batch_length": None}, world=World(rank, 3)))
        for rank in range(3)
    ]
    assert all(batch for part in parts for batch in part)
    assert sum(len(batch) for part in parts for batch in part) == 15


def test_epochs_and_seeds_differ_and_batches_are_shuffled():
    limits = {"batch_size": 5, "batch_length": None}
    data = build(list(range(100)), limits)
    first, second = one_epoch(data, 0), one_epoch(data, 1)
    assert first != second
    assert first != one_epoch(build(list(range(100)), limits, seed=1))
    starts = [batch[0] for batch in first]
    assert starts != sorted(starts)  # short ones do not all come first


@pytest.mark.parametrize("limits", [{}, {"batch_size": 0}, {"batch_length": -1}])
def test_limits_are_needed(limits):
    with pytest.raises(ConfigError, match="at least one of batch_size and batch_length"):
        build([1], limits)


def test_too_few_examples():
    with pytest.raises(DataError, match="no examples"):
        build([], {"batch_size": 1})
    with pytest.raises(DataError, match="2 examples are too few for 3 processes"):
        build([1, 1], {"batch_size": 1}, world=World(0, 3))


def test_tuples_need_a_length_where_it_limits_batches():
    pairs = [(["a", "cat"], 1), (["yes"], 0)]
    with pytest.raises(ConfigError, match=r"examples are tuples: len\(\) of one is 2"):
        Examples(pairs, list, batch_length=4)
    assert Examples(pairs, list, batch_length=4, length=len).total_length == 4
    assert Examples(pairs, list, batch_length=4, length=lambda e: len(e[0])).total_length == 3
    assert Examples([["a", "cat"], ["yes"]], list, batch_length=4).total_length == 3
