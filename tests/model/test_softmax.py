"""The loss and its gradients against plain autograd, and the full softmax against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import rounding

from relmo.model import softmax
from relmo.model.samples import Samples, sample_log_uniform
from relmo.model.softmax import log_probabilities, softmax_loss


def inputs(n_predictions, n_words, dim=4, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    shapes = [(n_predictions, dim), (n_words, dim), (n_words,)]
    x, weight, bias = (torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    return x, weight, bias, torch.randint(n_words, (n_predictions,))


def draw(n_samples, n_words, seed=0):
    return sample_log_uniform(n_samples, n_words, torch.Generator().manual_seed(seed))


def naive_loss(x, targets, samples, weight, bias):
    """One prediction after the other: the target, then the samples that are not the target."""
    loss = torch.zeros((), dtype=x.dtype)
    logits = x @ weight.t() + bias - samples.log_expected(torch.arange(len(bias)))
    for row, target in zip(logits, targets.tolist(), strict=True):
        others = [word for word in samples.words.tolist() if word != target]
        loss = loss - F.log_softmax(row[[target, *others]], dim=0)[0]
    return loss


def loss_and_gradients(x, targets, samples, weight, bias):
    """As a trainer has them, put back into the shape of the whole softmax."""
    rows = samples.rows_with(targets)
    weight_rows, bias_rows = (rows.gather(t).requires_grad_() for t in (weight, bias))
    loss = softmax_loss(x, targets, rows, weight_rows, bias_rows)
    by_x, *by_rows = torch.autograd.grad(loss, [x, weight_rows, bias_rows])
    words = torch.arange(len(bias)) if rows.words is None else rows.words
    whole = [
        torch.zeros_like(t).index_copy(0, words, g)
        for t, g in zip((weight, bias), by_rows, strict=True)
    ]
    return [loss, by_x, *whole]


def check_against_naive(x, targets, samples, weight, bias):
    expected = naive_loss(x, targets, samples, weight, bias)
    gradients = torch.autograd.grad(expected, [x, weight, bias])
    found = loss_and_gradients(x, targets, samples, weight, bias)
    torch.testing.assert_close(found, [expected, *gradients], rtol=1e-9, atol=1e-11)


@given(
    n_predictions=st.integers(1, 12),
    n_words=st.integers(2, 30),
    n_samples=st.integers(0, 30),
    max_logits=st.integers(1, 60),
    seed=st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_equals_autograd_of_the_naive_loss(n_predictions, n_words, n_samples, max_logits, seed):
    """Whatever the sizes, with targets sampled, not sampled and repeated, at any chunk border."""
    x, weight, bias, targets = inputs(n_predictions, n_words, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "MAX_LOGITS", max_logits)
        patch.setattr(softmax, "MIN_PREDICTIONS", 1)
        check_against_naive(x, targets, draw(n_samples, n_words, seed), weight, bias)


def test_gradcheck():
    x, weight, bias, targets = inputs(5, 9)
    rows = draw(4, 9).rows_with(targets)
    leaves = [rows.gather(tensor).requires_grad_() for tensor in (weight, bias)]
    assert torch.autograd.gradcheck(
        lambda x, *leaves: softmax_loss(x, targets, rows, *leaves), (x, *leaves)
    )


def test_every_word_is_cross_entropy():
    x, weight, bias, targets = inputs(50, 40)
    expected = F.cross_entropy(x @ weight.t() + bias, targets, reduction="sum")
    gradients = torch.autograd.grad(expected, [x, weight, bias])
    found = loss_and_gradients(x, targets, draw(0, 40), weight, bias)
    torch.testing.assert_close(found, [expected, *gradients])


def test_a_sampled_target_does_not_compete_with_itself():
    """Were it counted twice, a sure prediction would cost log 2."""
    samples = Samples(torch.tensor([0, 1]), 5, 3)
    targets = torch.tensor([1])
    rows = samples.rows_with(targets)
    weight_rows = rows.gather(torch.tensor([[0.0], [50.0], [0.0], [0.0], [0.0]]))
    loss = softmax_loss(torch.ones(1, 1), targets, rows, weight_rows, torch.zeros(2))
    assert 0 <= loss.item() < 1e-6


def test_only_its_own_target_counts_beside_the_samples():
    """The target of another prediction is in the rows, but not compared with."""
    samples = Samples(torch.tensor([0]), 5, 1)
    x, weight, bias, _ = inputs(2, 5)
    targets = torch.tensor([3, 4])
    rows = samples.rows_with(targets)
    together = softmax_loss(x, targets, rows, rows.gather(weight), rows.gather(bias))
    alone = [
        softmax_loss(x[[i]], targets[[i]], rows, rows.gather(weight), rows.gather(bias))
        for i in range(2)
    ]
    torch.testing.assert_close(together, sum(alone))
    check_against_naive(x, targets, samples, weight, bias)


def test_sampled_gradients_approach_the_full_ones():
    """Nearly all words, or few of them many times: on average, nearly the full gradient."""
    n_words = 12
    x, weight, bias, targets = inputs(6, n_words)
    full = loss_and_gradients(x, targets, draw(0, n_words), weight, bias)[1]

    def error_of_the_mean(n_samples, n_draws):
        draws = [
            loss_and_gradients(x, targets, draw(n_samples, n_words, seed), weight, bias)[1]
            for seed in range(n_draws)
        ]
        return (torch.stack(draws).mean(0) - full).norm() / full.norm()

    assert error_of_the_mean(11, 100) < 0.05
    assert error_of_the_mean(6, 200) < 0.5 * error_of_the_mean(6, 1)


def test_float32_with_large_logits_stays_finite():
    x, weight, bias, targets = inputs(40, 300, dim=8, dtype=torch.float32)
    with torch.no_grad():
        x.mul_(100)
    loss, *gradients = loss_and_gradients(x, targets, draw(100, 300), weight, bias)
    doubles = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    expected = naive_loss(doubles[0], targets, draw(100, 300), *doubles[1:])
    assert loss.dtype == torch.float32
    assert all(g.isfinite().all() for g in gradients)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_chunks_and_threads_change_nothing_but_rounding(monkeypatch):
    x, weight, bias, targets = inputs(300, 90, dtype=torch.float32)
    samples = draw(40, 90)
    found = loss_and_gradients(x, targets, samples, weight, bias)
    again = loss_and_gradients(x, targets, samples, weight, bias)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    monkeypatch.setattr(softmax, "MAX_LOGITS", 40 * 7)
    monkeypatch.setattr(softmax, "MIN_PREDICTIONS", 1)
    in_chunks = loss_and_gradients(x, targets, samples, weight, bias)
    for one, other in zip(in_chunks, found, strict=True):  # sums over 300 predictions, 41 words
        atol = rounding(300 + 41, scale=4 * float(other.detach().abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def test_no_prediction_costs_nothing():
    x, weight, bias, targets = inputs(0, 9)
    loss, *gradients = loss_and_gradients(x, targets, draw(4, 9), weight, bias)
    assert loss == 0
    assert not any(g.any() for g in gradients)


def test_without_anything_to_learn_there_is_only_the_loss():
    x, weight, bias, targets = inputs(8, 9)
    rows = draw(4, 9).rows_with(targets)
    with torch.no_grad():
        loss = softmax_loss(x, targets, rows, rows.gather(weight), rows.gather(bias))
    assert not loss.requires_grad
    assert torch.equal(loss, loss_and_gradients(x, targets, draw(4, 9), weight, bias)[0])


def test_logits_of_all_predictions_are_never_alive_at_once(monkeypatch):
    """The largest tensor that is made is a chunk, in training and in measuring alike."""
    n_predictions, n_words = 4096, 1024
    x, weight, bias, targets = inputs(n_predictions, n_words, dim=2, dtype=torch.float32)
    monkeypatch.setattr(softmax, "MAX_LOGITS", 1 << 16)
    monkeypatch.setattr(softmax, "WORD_BLOCK", 256)
    largest = max(
        largest_allocation(
            lambda: loss_and_gradients(x, targets, draw(512, n_words), weight, bias)
        ),
        largest_allocation(lambda: log_probabilities(x, targets, weight, bias)),
    )
    assert 4 << 15 < largest <= 4 << 16  # bytes; all logits would be 4 << 22


def largest_allocation(call):
    with torch.profiler.profile(profile_memory=True, record_shapes=False) as profile:
        call()
    return max(event.self_cpu_memory_usage for event in profile.events())


@given(
    n_predictions=st.integers(0, 9),
    n_words=st.integers(1, 40),
    word_block=st.integers(1, 50),
    max_logits=st.integers(50, 99),
)
@settings(max_examples=40, deadline=None)
def test_log_probabilities(n_predictions, n_words, word_block, max_logits):
    x, weight, bias, targets = inputs(n_predictions, n_words)
    expected = F.log_softmax(x @ weight.t() + bias, dim=1)[torch.arange(n_predictions), targets]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "MAX_LOGITS", max_logits)
        patch.setattr(softmax, "WORD_BLOCK", word_block)
        found = log_probabilities(x, targets, weight, bias)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_probabilities_of_all_words_add_up_to_one_in_half_precision_too():
    x, weight, bias, _ = inputs(1, 5000, dim=16, dtype=torch.float32)
    for weight_, bias_ in ((weight, bias), (weight.half(), bias.half())):
        every = log_probabilities(x.expand(5000, -1), torch.arange(5000), weight_, bias_)
        assert every.exp().sum().item() == pytest.approx(1, abs=rounding(16, scale=30))
        assert every.dtype == torch.float32
    sure = log_probabilities(torch.ones(1, 1), torch.tensor([0]), torch.tensor([[90.0]]), bias[:1])
    assert sure.item() == 0
