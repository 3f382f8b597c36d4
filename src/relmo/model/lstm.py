"""One layer of ELMo's LSTM, in one direction: projected and clipped, over packed sentences.

    i, f, o = σ(·)   g = tanh(·)   c = clip(f·c + i·g)   h = clip((o·tanh(c)) W_p)

Sentences arrive packed (see `relmo.text.batch.Packing`): the input half of all gates is one matrix
product over every token, and what is left in the loop are the two recurrent products of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relmo.model import kernels
from relmo.model.int8 import Int8Matrix


def _clip(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp(-bound, bound)


class Int8Weights(NamedTuple):
    """A layer's matrices in int8."""

    input: Int8Matrix
    recurrent: Int8Matrix
    projection: Int8Matrix | None


class ProjectedLstm(nn.Module):
    """One layer over packed tokens, (N, I) to (N, P); the gates are i, f, g, o.

    Without a projection (P is H then) there is no projection clip either.
    """

    def __init__(
        self,
        input_dim: int,
        cell_dim: int,
        projection_dim: int,
        cell_clip: float | None,
        projection_clip: float | None,
        *,
        projection: bool = True,
    ) -> None:
        super().__init__()
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.input_weight = nn.Parameter(torch.empty(4 * cell_dim, input_dim))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * cell_dim, projection_dim))
        self.bias = nn.Parameter(torch.empty(4 * cell_dim))
        self.projection_weight = (
            nn.Parameter(torch.empty(projection_dim, cell_dim)) if projection else None
        )
        self.int8: Int8Weights | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Glorot over input and recurrence together; the forget gate starts open."""
        gates_dim, input_dim = self.input_weight.shape
        cell_dim = gates_dim // 4
        bound = math.sqrt(6 / (input_dim + self.recurrent_weight.shape[1] + gates_dim))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.recurrent_weight, -bound, bound)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.bias[cell_dim : 2 * cell_dim])
        if self.projection_weight is not None:
            nn.init.xavier_uniform_(self.projection_weight)

    def forward(
        self, x: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read `sizes[t]` rows at step t, from state `h` (B, P) and `c` (B, H).

        Returns:
            The outputs (N, P), and the state in which each of the B sentences ended.
        """
        inputs = (x, h, c, *self.parameters())
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            return self._read_plainly(x, sizes, h, c, None)
        if kernels.loops is None or x.dtype != torch.float32 or not x.is_cpu:
            return self._read_plainly(x, sizes, h, c, self.int8)
        return self._read_fused(x, sizes, h, c, self.int8)

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Input, recurrent, bias, projection."""
        return self.input_weight, self.recurrent_weight, self.bias, self.projection_weight

    def clips(self) -> tuple[float, float]:
        """Of the cell and of the projected output; infinite where there is none."""
        projected = self.projection_weight is not None
        bounds = self.cell_clip, self.projection_clip if projected else None
        cell, output = (math.inf if bound is None else bound for bound in bounds)
        return cell, output

    def quantize(self) -> None:
        """Multiply in int8 from now on, with the weights as they are now."""
        projection = self.projection_weight
        self.int8 = Int8Weights(
            Int8Matrix(self.input_weight),
            Int8Matrix(self.recurrent_weight),
            None if projection is None else Int8Matrix(projection),
        )

    def _from_input(self, x: Tensor, int8: Int8Weights | None) -> Tensor:
        """The input's part of all gates of all tokens, (N, 4H)."""
        return x @ self.input_weight.t() if int8 is None else int8.input.apply(x)

    def _read_plainly(
        self, x: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor, int8: Int8Weights | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """With PyTorch alone: differentiable, on any device, in any precision."""
        outputs: list[Tensor] = []
        ended_h: list[Tensor] = []  # of the rows that have left, the last to leave first
        ended_c: list[Tensor] = []
        for gates in self._from_input(x, int8).split(list(sizes)):  # (size, 4H)
            size = len(gates)
            if size < len(h):
                ended_h.insert(0, h[size:])
                ended_c.insert(0, c[size:])
                h, c = h[:size], c[:size]
            weight = self.recurrent_weight
            from_state = h @ weight.t() if int8 is None else int8.recurrent.apply(h)
            i, f, g, o = (gates + from_state + self.bias).chunk(4, dim=1)  # (size, H) each
            c = _clip(f.sigmoid() * c + i.sigmoid() * g.tanh(), self.cell_clip)
            h = o.sigmoid() * c.tanh()
            if int8 is not None and int8.projection is not None:
                h = int8.projection.apply(h, self.projection_clip)
            elif self.projection_weight is not None:
                h = _clip(h @ self.projection_weight.t(), self.projection_clip)  # (size, P)
            outputs.append(h)
        y = torch.cat(outputs) if outputs else x.new_empty(0, h.shape[1])
        return y, torch.cat([h, *ended_h]), torch.cat([c, *ended_c])

    def _read_fused(
        self, x: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor, int8: Int8Weights | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same with the C kernel, in place: float32 on a CPU, nothing to differentiate."""
        # The caller's state is left alone; ours is written over, by address, so it has no gaps.
        c, last_h = (s.clone(memory_format=torch.contiguous_format) for s in (c, h))
        assert kernels.loops is not None
        from_input = self._from_input(x, int8)
        y = x.new_empty(len(x), h.shape[1])
        from_state = x.new_empty(len(c), 4 * c.shape[1])
        m = torch.empty_like(c)
        # Sizes never grow: a lone sentence comes last.
        n_many = sum(size > 1 for size in sizes) if int8 is None else len(sizes)
        place = 0
        for size in sizes[:n_many]:
            last_h[size : len(h)] = h[size:]  # those that end here
            places = slice(place, place + size)
            self._fused_cell(from_input[places], h[:size], from_state[:size], c, m, int8)
            h = self._project(m[:size], y[places], int8)
            place += size
        last_h[: len(h)] = h
        if n_many < len(sizes):
            self._read_one(from_input[place:], last_h, c, y[place:], from_state, m)
        return y, last_h, c

    def _read_one(
        self, from_input: Tensor, h: Tensor, c: Tensor, y: Tensor, s: Tensor, m: Tensor
    ) -> None:
        """All steps that the first sentence has left, in one call: updates h and c, fills y."""
        assert kernels.loops is not None
        weights = (
            None if weight is None else weight.contiguous()
            for weight in (self.recurrent_weight, self.projection_weight, self.bias)
        )
        tensors = (from_input, *weights, h, c, y, s, m)
        kernels.loops.read_one(
            *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
            len(y),
            c.shape[1],
            h.shape[1],
            math.inf if self.cell_clip is None else self.cell_clip,
            math.inf if self.projection_clip is None else self.projection_clip,
        )

    def _fused_cell(
        self,
        from_input: Tensor,
        h: Tensor,
        from_state: Tensor,
        c: Tensor,
        m: Tensor,
        int8: Int8Weights | None,
    ) -> None:
        """Update as many rows of c as h has, and fill those of m with o·tanh(c)."""
        assert kernels.loops is not None
        shape = (len(h), c.shape[1])
        bound = math.inf if self.cell_clip is None else self.cell_clip
        bias = self.bias.contiguous()
        if int8 is None:
            torch.mm(h, self.recurrent_weight.t(), out=from_state)
            addresses = [t.data_ptr() for t in (from_input, from_state, bias, c, m)]
            kernels.loops.cell(*addresses, *shape, bound)
        else:
            product, scales = int8.recurrent.times(h, out=from_state.view(torch.int32))
            columns = int8.recurrent.scales
            addresses = [t.data_ptr() for t in (from_input, product, scales, columns, bias, c, m)]
            kernels.loops.cell_int8(*addresses, *shape, bound)

    def _project(self, m: Tensor, y: Tensor, int8: Int8Weights | None) -> Tensor:
        """Write the step's output, (size, P)."""
        if self.projection_weight is None:
            return y.copy_(m)
        if int8 is not None and int8.projection is not None:
            return int8.projection.apply(m, self.projection_clip, out=y)
        torch.mm(m, self.projection_weight.t(), out=y)
        if self.projection_clip is not None:
            y.clamp_(-self.projection_clip, self.projection_clip)
        return y
