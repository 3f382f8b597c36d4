"""What a `BiLm` gives for a batch: layers, flat or padded, and the state of its LSTMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relmo.arrays import IntArray


@dataclass(frozen=True)
class BiLmState:
    """What the 2L LSTMs remember of B sentences; direction 0 is forward, 1 backward."""

    h: Tensor  # (2, L, B, P)
    c: Tensor  # (2, L, B, H)

    def select(self, rows: IntArray) -> BiLmState:
        """Return the state of some of the sentences, or of all of them in another order."""
        numbers = torch.from_numpy(rows).to(self.h.device)
        return BiLmState(self.h.index_select(2, numbers), self.c.index_select(2, numbers))


@dataclass(frozen=True)
class Packed:
    """The layers of a batch without padding: its N tokens, boundaries included, stand in a row.

    Attributes:
        layers: (K, N, 2P) of every flat token, sentence after sentence.
        lengths: (B,) tokens of each sentence, boundaries included.
        state: where each sentence ended.
    """

    layers: Tensor
    lengths: IntArray
    state: BiLmState

    def sentences(self, *, boundaries: bool = False) -> list[Tensor]:
        """Return the vectors (K, tokens, 2P) of each sentence, views of `layers`."""
        parts = self.layers.split(self.lengths.tolist(), dim=1)
        return list(parts) if boundaries else [part[:, 1:-1] for part in parts]

    def padded(self) -> BiLmOutput:
        """Pad the sentences, boundaries included, for a network on top."""
        places = np.arange(int(self.lengths.max(initial=0)))
        mask = torch.from_numpy(places < self.lengths[:, None]).to(self.layers.device)
        n_layers, _, dim = self.layers.shape
        padded = self.layers.new_zeros(n_layers, *mask.shape, dim)
        padded[:, mask] = self.layers
        return BiLmOutput(padded, mask, self.state)


@dataclass(frozen=True)
class BiLmOutput:
    """Every layer's vectors: 0 the token encoder's, twice; j ≥ 1 LSTM j's [forward; backward]."""

    layers: Tensor  # (L+1, B, T, 2P), zero where there is no token
    mask: Tensor  # (B, T), True on real tokens
    state: BiLmState  # where each sentence ended

    def without_boundaries(self) -> BiLmOutput:
        """Return the sentences' own tokens only: without the first and last vector of each."""
        mask = self.mask[:, 2:]
        return BiLmOutput(self.layers[:, :, 1:-1] * mask[..., None], mask, self.state)
