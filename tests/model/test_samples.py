"""Words drawn to compare with, against brute force."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.model.samples import Samples, sample_log_uniform


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw_one_by_one(n_samples, n_words, seed):
    """TensorFlow's way, with the same random numbers: draw until so many are distinct."""
    source, words, n_tries = generator(seed), [], 0
    while True:
        for uniform in torch.rand(2 * n_samples, generator=source, dtype=torch.float64).tolist():
            n_tries += 1
            word = int(math.exp(uniform * math.log(n_words + 1))) - 1
            if word not in words:
                words.append(word)
            if len(words) == n_samples:
                return sorted(words), n_tries


@given(n_words=st.integers(2, 60), share=st.floats(0, 1), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_draws_as_one_by_one(n_words, share, seed):
    n_samples = max(1, int(share * (n_words - 1)))
    found = sample_log_uniform(n_samples, n_words, generator(seed))
    assert (found.words.tolist(), found.n_tries) == draw_one_by_one(n_samples, n_words, seed)


@pytest.mark.parametrize("n_words", [10_000, 1_000_000])
def test_a_large_sample_is_distinct_and_the_same_for_the_same_seed(n_words):
    found = sample_log_uniform(8192, n_words, generator(3))
    assert len(set(found.words.tolist())) == 8192
    assert 0 <= found.words.min() <= found.words.max() < n_words
    again = sample_log_uniform(8192, n_words, generator(3))
    assert torch.equal(found.words, again.words)
    assert found.n_tries == again.n_tries
    assert not torch.equal(found.words, sample_log_uniform(8192, n_words, generator(4)).words)


def test_words_come_as_often_as_expected():
    n_words, n_draws, source = 50, 4000, generator()
    counts, expected = torch.zeros(n_words), torch.zeros(n_words, dtype=torch.float64)
    for _ in range(n_draws):
        samples = sample_log_uniform(12, n_words, source)
        counts[samples.words] += 1
        expected += samples.log_expected(torch.arange(n_words)).exp()
    # 1 - (1 - p)^tries takes the tries as given beforehand: right to a few percent, not exactly.
    assert ((counts - expected).abs() < 0.06 * expected + 5 * expected.sqrt()).all()
    assert counts.sum() == 12 * n_draws
    assert expected.sum() == pytest.approx(12 * n_draws, rel=0.02)


def test_probabilities_are_log_uniform():
    """With one try the expected count is the probability itself, and they add up to 1."""
    log_p = Samples(torch.tensor([0]), 1000, 1).log_expected(torch.arange(1000))
    assert log_p.exp().sum() == pytest.approx(1, abs=1e-12)
    assert log_p[4].exp() == pytest.approx(math.log(6 / 5) / math.log(1001), abs=1e-15)


def test_expected_counts_of_rare_words_are_exact():
    n_words, n_tries = 100_000_000, 7
    found = Samples(torch.tensor([0]), n_words, n_tries).log_expected(torch.tensor([n_words - 1]))
    p = 1 / (n_words * math.log(n_words + 1))  # to first order
    assert found.item() == pytest.approx(math.log(n_tries * p), abs=1e-7)


@pytest.mark.parametrize("n_samples", [0, 7, 100])
def test_every_word(n_samples):
    samples = sample_log_uniform(n_samples, 7, generator())
    assert samples.words.tolist() == list(range(7))
    assert samples.log_expected(torch.arange(7)).tolist() == [0] * 7
    rows = samples.rows_with(torch.tensor([3]))
    weight = torch.randn(7, 2)
    assert rows.words is None
    assert rows.gather(weight).data_ptr() == weight.data_ptr()
    assert rows.places(torch.tensor([5, 5, 0])).tolist() == [5, 5, 0]


def test_rows_are_samples_then_other_targets_each_once():
    samples = Samples(torch.tensor([0, 2, 5]), 10, 4)
    targets = torch.tensor([9, 2, 7, 9, 0])
    rows = samples.rows_with(targets)
    assert rows.words.tolist() == [0, 2, 5, 7, 9]
    assert rows.places(targets).tolist() == [4, 1, 3, 4, 0]
    assert torch.equal(rows.correction, -samples.log_expected(rows.words))
    weight = torch.randn(10, 3, requires_grad=True)
    assert torch.equal(rows.gather(weight), weight[[0, 2, 5, 7, 9]])
    assert not rows.gather(weight).requires_grad
    assert samples.rows_with(targets[:0]).words.tolist() == [0, 2, 5]
