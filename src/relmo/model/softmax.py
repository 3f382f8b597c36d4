"""The output layer and its cross-entropy loss: full softmax, or sampled softmax.

Letters in shapes: M predictions, K samples, R rows, V words, P dim.

A step of training touches R rows of the softmax: those of the samples and those of the targets that
are not among them. They are gathered first, so that its cost does not grow with the vocabulary:

    samples = sample_log_uniform(n_samples, n_words, generator)
    rows = samples.rows_with(targets)
    weight_rows = rows.gather(weight).requires_grad_()
    bias_rows = rows.gather(bias).requires_grad_()
    softmax_loss(x, targets, rows, weight_rows, bias_rows).backward()
    ...  # and rows.words says which rows of weight and bias the gradients belong to
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from relmo.model.samples import SoftmaxRows
from relmo.model.threads import run_in_two_threads

# Logits that are alive at once, in each of two threads: few enough to stay in the caches, ...
MAX_LOGITS = 1 << 21
# ... but matrix products of fewer predictions than this would wait for memory.
MIN_PREDICTIONS = 32
WORD_BLOCK = 4096


def softmax_loss(
    x: Tensor, targets: Tensor, rows: SoftmaxRows, weight_rows: Tensor, bias_rows: Tensor
) -> Tensor:
    """Sum the cross-entropy of M predictions, over the samples and the target, each once.

    Args:
        x: (M, P) outputs of the LSTMs.
        targets: (M,) the words to predict.
        rows: from `rows_with` of these targets, or of more than these.
        weight_rows: (R, P) of those rows.
        bias_rows: (R,) of those rows.
    """
    bias = bias_rows + rows.correction.to(bias_rows)
    x = x.to(weight_rows.dtype)
    places = rows.places(targets)
    loss: Tensor = _SoftmaxLoss.apply(x, weight_rows, bias, places, rows.n_samples)  # type: ignore[no-untyped-call]
    return loss


class _SoftmaxLoss(torch.autograd.Function):
    """Loss and gradients in one pass, some predictions at a time: backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, places: Tensor, n_samples: int
    ) -> Tensor:
        middle = len(x) // 2
        halves = slice(0, middle), slice(middle, len(x))
        learn = any(ctx.needs_input_grad)
        (loss, *one), (more, *other) = run_in_two_threads(
            *(partial(_compare, x[h], weight, bias, places[h], n_samples, learn) for h in halves)
        )
        if learn:
            gradients = torch.cat([one[0], other[0]]), one[1].add_(other[1]), one[2].add_(other[2])
            ctx.save_for_backward(*gradients)
        return (loss + more).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        needed = zip(ctx.needs_input_grad, ctx.saved_tensors, strict=False)
        return *(scale * gradient if need else None for need, gradient in needed), None, None


def _compare(
    x: Tensor, weight: Tensor, bias: Tensor, places: Tensor, n_samples: int, learn: bool
) -> list[Tensor]:
    """The loss in float64 and, to learn from, its gradients by x, weight and bias."""
    n = max(MIN_PREDICTIONS, MAX_LOGITS // n_samples)
    buffer = x.new_empty(min(n, len(x)), n_samples)
    samples, samples_bias = weight[:n_samples], bias[:n_samples]
    loss = x.new_zeros((), dtype=torch.float64)
    gradients = [torch.zeros_like(tensor) for tensor in (x, weight, bias) if learn]
    for start in range(0, len(x), n):
        part, place = x[start : start + n], places[start : start + n]  # (m, P), (m,)
        own = weight.index_select(0, place)  # (m, P)
        target = (part * own).sum(dim=1) + bias.index_select(0, place)  # (m,)
        logits = torch.addmm(samples_bias, part, samples.t(), out=buffer[: len(part)])  # (m, K)
        # A target that is a sample is among these already, and must not count twice.
        outside = target.masked_fill(place < n_samples, -math.inf)
        largest = torch.maximum(logits.amax(dim=1), outside)
        outside = (outside - largest).exp_()
        total = _exponentiate(logits, largest) + outside
        loss += (total.log() + largest - target).sum(dtype=torch.float64)
        if learn:
            by_x, by_weight, by_bias = gradients
            by_target = outside / total - 1  # beyond what a sample's logit gets
            part_by_x = torch.mm(logits, samples, out=by_x[start : start + n])
            part_by_x.div_(total[:, None]).addcmul_(own, by_target[:, None])
            by_weight[:n_samples].addmm_(logits.t(), part / total[:, None])
            by_weight.index_add_(0, place, part * by_target[:, None])
            by_bias[:n_samples].addmv_(logits.t(), 1 / total)
            by_bias.index_add_(0, place, by_target)
    return [loss, *gradients]


def _exponentiate(logits: Tensor, largest: Tensor) -> Tensor:
    """Put exp(logit - largest) in place of the logits (m, K); their sum (m,)."""
    return logits.sub_(largest[:, None]).exp_().sum(dim=1)


@torch.no_grad()
def log_probabilities(x: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(M,) log p(target) among all words, from x (M, P), weight (V, P) and bias (V,)."""
    middle = len(x) // 2
    halves = slice(0, middle), slice(middle, len(x))
    parts = run_in_two_threads(*(partial(_log_total, x[half], weight, bias) for half in halves))
    own = (x * weight.index_select(0, targets).to(x.dtype)).sum(dim=1)
    own += bias.index_select(0, targets).to(x.dtype)
    return (own - torch.cat(parts)).clamp_(max=0)  # rounding can leave a sure word above 0


def _log_total(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(M,) log Σ exp(logit) over all words, a block of both at a time."""
    n = MAX_LOGITS // WORD_BLOCK
    buffer = x.new_empty(min(n, len(x)) * WORD_BLOCK)
    result = x.new_full((len(x),), -math.inf)
    for words in range(0, len(weight), WORD_BLOCK):
        block = weight[words : words + WORD_BLOCK].to(x.dtype)  # (v, P)
        block_bias = bias[words : words + WORD_BLOCK].to(x.dtype)
        for start in range(0, len(x), n):
            part = x[start : start + n]  # (m, P)
            logits = buffer[: len(part) * len(block)].view(len(part), len(block))
            torch.addmm(block_bias, part, block.t(), out=logits)
            largest = logits.amax(dim=1)
            log_sum = _exponentiate(logits, largest).log_().add_(largest)
            so_far = result[start : start + n]
            torch.logaddexp(so_far, log_sum, out=so_far)
    return result
