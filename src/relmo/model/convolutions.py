"""Convolutions over the characters of a token, max-pooled over the positions.

They are matrix products over copied windows, which for short words is far faster than PyTorch's
convolution. In training, one window per token and filter gets a gradient: `kernels` adds up those
alone, where autograd would multiply whole matrices of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relmo.model import kernels
from relmo.model.threads import run_in_two_threads

MAX_POSITIONS = 2048  # of a block: what is alive at once stays in the caches, whatever comes in


def max_pooled(
    characters: Tensor, used: Sequence[int], embedding: Tensor, filters: Sequence[Tensor]
) -> Tensor:
    """Max-pool each filter over its positions, without its bias: (U, F).

    Windows of padding alone are all alike, so one of them is enough: characters are cut at the
    longest word of a block and the widest filter, and no maximum notices.

    Args:
        characters: (U, C) ids, those of like lengths together.
        used: (U,) how many of them come before the padding.
        embedding: (A, E) a vector for each character.
        filters: (n, E, width) each.
    """
    blocks = _blocks(characters, used, max(weight.shape[2] for weight in filters))
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (embedding, *filters))
    if (
        learns
        and kernels.loops is not None
        and embedding.is_cpu
        and embedding.dtype == torch.float32
    ):
        found: Tensor = _MaxPooled.apply(embedding, blocks, *filters)  # type: ignore[no-untyped-call]
        return found
    weights = [_as_matrix(weight) for weight in filters]
    parts = [
        torch.cat([_convolve(x, weight).amax(dim=1) for weight in weights], dim=1)
        for x in (embedding[block] for block in blocks)
    ]
    if not parts:  # differentiable all the same
        return embedding[:0, :1].expand(0, sum(map(len, filters)))
    return torch.cat(parts)


def _blocks(characters: Tensor, used: Sequence[int], widest: int) -> list[Tensor]:
    blocks, start = [], 0
    while start < len(used):
        end = start + max(1, MAX_POSITIONS // (used[start] + widest))
        blocks.append(characters[start:end, : max(used[start:end]) + widest])
        start = end
    return blocks


def _as_matrix(weight: Tensor) -> Tensor:
    """(n, E, width) to (n, width · E): as windows lie in memory."""
    return weight.transpose(1, 2).flatten(1)


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve vectors (u, C, E) with filters (n, width · E): (u, C - width + 1, n)."""
    width = weight.shape[1] // x.shape[2]
    windows = x.unfold(1, width, 1).transpose(2, 3)  # (u, C - width + 1, width, E)
    return (windows.reshape(-1, weight.shape[1]) @ weight.t()).view(*windows.shape[:2], -1)


class _MaxPooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Tensor, blocks: list[Tensor], *filters: Tensor) -> Tensor:
        weights = [_as_matrix(weight).contiguous() for weight in filters]
        n_words, n_filters = sum(map(len, blocks)), sum(map(len, filters))
        best = embedding.new_empty(n_words, n_filters)
        where = torch.empty(n_words, n_filters, dtype=torch.int32)
        half = _halves(blocks)
        run_in_two_threads(
            partial(_pool, embedding, weights, blocks[:half], best, where, 0),
            partial(
                _pool, embedding, weights, blocks[half:], best, where, sum(map(len, blocks[:half]))
            ),
        )
        ctx.save_for_backward(embedding, where, *weights, *blocks)
        ctx.n_weights = len(weights)
        return best

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        embedding, where, *rest = ctx.saved_tensors
        weights, blocks = rest[: ctx.n_weights], rest[ctx.n_weights :]
        gradient = gradient.contiguous()
        half = _halves(blocks)
        start = sum(map(len, blocks[:half]))
        one, other = run_in_two_threads(
            partial(_backward, embedding, weights, blocks[:half], gradient[:start], where[:start]),
            partial(_backward, embedding, weights, blocks[half:], gradient[start:], where[start:]),
        )
        dembedding, *dweights = (a.add_(b) for a, b in zip(one, other, strict=True))
        dim = embedding.shape[1]
        filters = [d.view(len(d), -1, dim).transpose(1, 2) for d in dweights]
        return dembedding, None, *filters


def _halves(blocks: Sequence[Tensor]) -> int:
    return len(blocks) // 2


def _pool(
    embedding: Tensor,
    weights: Sequence[Tensor],
    blocks: Sequence[Tensor],
    best: Tensor,
    where: Tensor,
    start: int,
) -> None:
    """Fill the rows of `best` and `where` from `start` on."""
    assert kernels.loops is not None
    for block in blocks:
        x, column = embedding.index_select(0, block.flatten()).view(*block.shape, -1), 0
        for weight in weights:
            activations = _convolve(x, weight)
            places = best[start:, column].data_ptr(), where[start:, column].data_ptr()
            kernels.loops.max_pooled(
                activations.data_ptr(), *places, *activations.shape, best.shape[1]
            )
            column += len(weight)
        start += len(block)


def _backward(
    embedding: Tensor,
    weights: Sequence[Tensor],
    blocks: Sequence[Tensor],
    gradient: Tensor,
    where: Tensor,
) -> list[Tensor]:
    """Gradients of the embedding and of the filters' matrices."""
    assert kernels.loops is not None
    dembedding, dweights = torch.zeros_like(embedding), [torch.zeros_like(w) for w in weights]
    dim, start = embedding.shape[1], 0
    for block in blocks:
        x, column = embedding.index_select(0, block.flatten()), 0  # (u · C, E)
        dx = torch.zeros_like(x)
        for weight, dweight in zip(weights, dweights, strict=True):
            rows = gradient[start:, column].data_ptr(), where[start:, column].data_ptr()
            kernels.loops.max_pooled_back(
                x.data_ptr(),
                weight.data_ptr(),
                *rows,
                dx.data_ptr(),
                dweight.data_ptr(),
                len(block),
                block.shape[1] * dim,
                len(weight),
                gradient.shape[1],
                weight.shape[1],
                dim,
            )
            column += len(weight)
        dembedding.index_add_(0, block.flatten(), dx)
        start += len(block)
    return [dembedding, *dweights]
