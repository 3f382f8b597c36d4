"""One LSTM layer in both directions at once, with its backward pass.

The backward pass is what autograd would make of `ProjectedLstm`, written out: of a step, only the
two recurrent products and the cell stay in the loop, and the gradient of each weight is one matrix
product over all steps. Autograd runs on one thread, so the two directions have to be inside one
function to run on two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relmo.model import kernels
from relmo.model.lstm import ProjectedLstm
from relmo.model.threads import run_in_two_threads

State = tuple[Tensor, Tensor]


def run_layer(
    layers: Sequence[ProjectedLstm], x: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer over packed tokens in D directions: both, or one alone.

    Args:
        layers: one per direction, of the same sizes and clips.
        x: (D, N, I) inputs, each direction's in its own order.
        sizes: rows that read a token, for each step.
        h: (D, B, P) where to start from.
        c: (D, B, H) the same of the cells.

    Returns:
        Outputs (D, N, P), and the state in which each of the B sentences ended.
    """
    weights = [weight for layer in layers for weight in layer.weights()]
    learns = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, h, c, *weights)
    )
    if learns and x.is_cpu and len(layers) == 2:
        y, h, c = _BothDirections.apply(x, h, c, sizes, layers[0].clips(), *weights)  # type: ignore[no-untyped-call]
        return y, h, c
    calls = [partial(layer, x[w], sizes, h[w], c[w]) for w, layer in enumerate(layers)]
    if len(calls) == 1:
        y, h, c = (part[None] for part in calls[0]())
    else:
        y, h, c = (torch.stack(both) for both in zip(*run_in_two_threads(*calls), strict=True))
    return y, h, c


class _Weights(NamedTuple):
    input: Tensor  # (4H, I)
    recurrent: Tensor  # (4H, P)
    bias: Tensor  # (4H,)
    projection: Tensor | None  # (P, H)


class _Kept(NamedTuple):
    """What one direction keeps for its backward pass."""

    gates: Tensor  # (N, 4H) after σ and tanh
    cells: Tensor  # (N, H) after the clip
    outputs: Tensor  # (N, H) o·tanh(c), before the projection
    y: Tensor  # (N, P)


class _BothDirections(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        sizes: Sequence[int],
        clips: tuple[float, float],
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        both = _Weights(*weights[:4]), _Weights(*weights[4:])  # type: ignore[arg-type]
        y, last_h, last_c = x.new_empty(2, x.shape[1], h.shape[2]), h.clone(), c.clone()
        calls = (
            partial(_run, x[w], sizes, (h[w], c[w]), both[w], clips, (y[w], last_h[w], last_c[w]))
            for w in (0, 1)
        )
        kept = run_in_two_threads(*calls)
        ctx.save_for_backward(x, h, c, y, *weights, *(t for k in kept for t in k[:3]))
        ctx.sizes, ctx.clips = sizes, clips
        return y, last_h, last_c

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        x, h, c, y, *rest = ctx.saved_tensors
        needed = ctx.needs_input_grad
        dx = torch.empty_like(x) if needed[0] else None
        dh, dc = dh.contiguous().clone(), dc.contiguous().clone()  # become those of the first state

        def backward_of(direction: int) -> tuple[Tensor | None, ...]:
            gates, cells, outputs = rest[8 + 3 * direction : 11 + 3 * direction]
            kept = _Kept(gates, cells, outputs, y[direction])
            weights = _Weights(*rest[4 * direction : 4 * direction + 4])
            dz, dgates = _backward(
                dy[direction], (dh[direction], dc[direction]), c[direction], kept, weights, ctx
            )
            if dx is not None:
                torch.mm(dgates, weights.input, out=dx[direction])
            wanted = needed[5 + 4 * direction : 9 + 4 * direction]
            before = _shifted(y[direction], h[direction], ctx.sizes) if wanted[1] else None
            return (
                dgates.t() @ x[direction] if wanted[0] else None,
                dgates.t() @ before if before is not None else None,
                dgates.sum(0) if wanted[2] else None,
                dz.t() @ kept.outputs if wanted[3] else None,
            )

        first, second = run_in_two_threads(partial(backward_of, 0), partial(backward_of, 1))
        return (dx, dh, dc, None, None, *first, *second)


def _run(
    x: Tensor,
    sizes: Sequence[int],
    state: State,
    weights: _Weights,
    clips: tuple[float, float],
    out: tuple[Tensor, Tensor, Tensor],
) -> _Kept:
    """One direction forward; fills `out` with the outputs and the last state."""
    (h, c), (y, last_h, last_c) = state, out
    c = c.contiguous()
    gates = x @ weights.input.t()  # (N, 4H), becomes what the gates say
    cells, outputs = x.new_empty(len(x), c.shape[1]), x.new_empty(len(x), c.shape[1])
    from_state = x.new_empty(len(c), gates.shape[1])
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        last_h[size : len(h)], last_c[size : len(c)] = h[size:], c[size:]  # of those that end here
        places = slice(start, start + size)
        torch.mm(h[:size], weights.recurrent.t(), out=from_state[:size])
        step = (
            gates[places],
            from_state[:size],
            weights.bias,
            c[:size],
            cells[places],
            outputs[places],
        )
        _cell(*step, clips[0])
        h, c = y[places], cells[places]
        if weights.projection is None:
            h.copy_(outputs[places])
        else:
            torch.mm(outputs[places], weights.projection.t(), out=h)
            if clips[1] < math.inf:
                h.clamp_(-clips[1], clips[1])
    last_h[: len(h)], last_c[: len(c)] = h, c
    return _Kept(gates, cells, outputs, y)


def _backward(
    dy: Tensor, state: State, c: Tensor, kept: _Kept, weights: _Weights, ctx: Any
) -> tuple[Tensor, Tensor]:
    """Backward pass of one direction, from the last step to the first.

    `state` holds the gradients of the last state and ends as those of the first.

    Returns:
        Gradients of the outputs before their clip (N, P), and of the gates' sums (N, 4H).
    """
    (dh, dc), (cell_clip, clip) = state, ctx.clips
    dz, dgates = torch.empty_like(kept.y), torch.empty_like(kept.gates)
    room = torch.empty_like(c)
    c = c.contiguous()
    start = len(dz)
    for step in range(len(ctx.sizes) - 1, -1, -1):
        size = ctx.sizes[step]
        start -= size
        places = slice(start, start + size)
        torch.add(dy[places], dh[:size], out=dz[places])
        if weights.projection is None:
            dm = dz[places]
        else:
            if clip < math.inf:
                dz[places].mul_(kept.y[places].abs() < clip)
            dm = torch.mm(dz[places], weights.projection, out=room[:size])
        before = kept.cells[start - ctx.sizes[step - 1] :][:size] if step else c[:size]
        gates, cells = kept.gates[places], kept.cells[places]
        _cell_back(gates, before, cells, dm, dc[:size], dgates[places], cell_clip)
        torch.mm(dgates[places], weights.recurrent, out=dh[:size])
    return dz, dgates


def _shifted(y: Tensor, h: Tensor, sizes: Sequence[int]) -> Tensor:
    """(N, P) the output that each token's sentence had before it, h at the start."""
    starts = accumulate(sizes, initial=0)
    later = [y[start : start + size] for start, size in zip(starts, sizes[1:], strict=False)]
    return torch.cat([h[: sizes[0]], *later]) if sizes else y


def _cell(
    gates: Tensor, s: Tensor, bias: Tensor, before: Tensor, c: Tensor, m: Tensor, bound: float
) -> None:
    """Put the gates' values into `gates`; fill c and m."""
    if kernels.loops is not None and gates.dtype == torch.float32:
        addresses = [t.data_ptr() for t in (gates, s, bias, before, c, m)]
        kernels.loops.cell_kept(*addresses, *c.shape, bound)
        return
    gates += s
    gates += bias
    i, f, g, o = gates.chunk(4, dim=1)
    for gate in (i, f, o):
        gate.sigmoid_()
    g.tanh_()
    torch.clamp(f * before + i * g, -bound, bound, out=c)
    torch.mul(o, c.tanh(), out=m)


def _cell_back(
    gates: Tensor, before: Tensor, c: Tensor, dm: Tensor, dc: Tensor, dgates: Tensor, bound: float
) -> None:
    """Fill `dgates`; dc, the gradient of c, becomes that of the c before."""
    if kernels.loops is not None and gates.dtype == torch.float32:
        addresses = [t.data_ptr() for t in (gates, before, c, dm, dc, dgates)]
        kernels.loops.cell_back(*addresses, *c.shape, bound)
        return
    i, f, g, o = gates.chunk(4, dim=1)
    di, df, dg, do = dgates.chunk(4, dim=1)
    t = c.tanh()
    dc += dm * o * (1 - t * t)
    dc *= (f * before + i * g).abs() <= bound  # no gradient passes a c that was clipped
    torch.mul(dc * g, i * (1 - i), out=di)
    torch.mul(dc * before, f * (1 - f), out=df)
    torch.mul(dc * i, 1 - g * g, out=dg)
    torch.mul(dm * t, o * (1 - o), out=do)
    dc *= f
