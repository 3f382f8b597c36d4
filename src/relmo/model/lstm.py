"""One layer of ELMo's LSTM, in one direction: projected and clipped, over packed sentences.

    i, f, o = σ(·)   g = tanh(·)   c = clip(f·c + i·g)   h = clip((o·tanh(c)) W_p)

Sentences arrive packed (see `relmo.text.batch.Packing`): the input half of all gates is one matrix
product over every token, and what is left in the loop are the two recurrent products of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from relmo.model import kernels


def _clip(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp(-bound, bound)


class ProjectedLstm(nn.Module):
    """A layer that reads (N, I) packed tokens and writes (N, P); gates are i, f, g, o.

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
        from_input = torch.addmm(self.bias, x, self.input_weight.t())  # (N, 4H)
        learning = torch.is_grad_enabled() and (x.requires_grad or self.bias.requires_grad)
        plain = learning or kernels.cell is None or x.dtype != torch.float32 or not x.is_cpu
        read = self._read_plainly if plain else self._read_fused
        return read(from_input, sizes, h, c)

    def _read_plainly(
        self, from_input: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """With PyTorch alone: differentiable, on any device, in any precision."""
        outputs: list[Tensor] = []
        ended_h: list[Tensor] = []  # of the rows that have left, the last to leave first
        ended_c: list[Tensor] = []
        for gates in from_input.split(list(sizes)):  # (size, 4H)
            size = len(gates)
            if size < len(h):
                ended_h.insert(0, h[size:])
                ended_c.insert(0, c[size:])
                h, c = h[:size], c[:size]
            gates = torch.addmm(gates, h, self.recurrent_weight.t())
            i, f, g, o = gates.chunk(4, dim=1)  # (size, H) each
            c = _clip(f.sigmoid() * c + i.sigmoid() * g.tanh(), self.cell_clip)
            h = o.sigmoid() * c.tanh()
            if self.projection_weight is not None:
                h = _clip(h @ self.projection_weight.t(), self.projection_clip)  # (size, P)
            outputs.append(h)
        y = torch.cat(outputs) if outputs else from_input.new_empty(0, h.shape[1])
        return y, torch.cat([h, *ended_h]), torch.cat([c, *ended_c])

    def _read_fused(
        self, from_input: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same with the C kernel, in place: float32 on a CPU, nothing to differentiate."""
        assert kernels.cell is not None
        n_sentences, cell_dim = c.shape
        c, last_h = c.clone(), h.clone()  # the caller's are left alone; ours are written over
        y = from_input.new_empty(len(from_input), h.shape[1])
        from_state = from_input.new_empty(n_sentences, 4 * cell_dim)
        m = y if self.projection_weight is None else from_input.new_empty(n_sentences, cell_dim)
        cell_clip = math.inf if self.cell_clip is None else self.cell_clip
        gates = from_input.data_ptr()
        place = 0
        for size in sizes:
            last_h[size : len(h)] = h[size:]
            torch.mm(h[:size], self.recurrent_weight.t(), out=from_state[:size])
            h = y[place : place + size]
            m_step = h if self.projection_weight is None else m[:size]
            kernels.cell(
                gates,
                from_state.data_ptr(),
                c.data_ptr(),
                m_step.data_ptr(),
                size,
                cell_dim,
                cell_clip,
            )
            if self.projection_weight is not None:
                torch.mm(m_step, self.projection_weight.t(), out=h)
                if self.projection_clip is not None:
                    h.clamp_(-self.projection_clip, self.projection_clip)
            gates += 16 * cell_dim * size
            place += size
        last_h[: len(h)] = h
        return y, last_h, c
