"""Vectors of tokens, whatever gives them: `Features` is the protocol, `Layers` a padded batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from relmo.arrays import Array
from relmo.errors import ConfigError

Sentences = Sequence[Sequence[str]]  # tokenised


@dataclass(frozen=True)
class Layers:
    """The layers of a padded batch of sentences.

    Attributes:
        values: (K, B, T, D) float32, zero where there is no token.
        mask: (B, T), True on real tokens (and on boundaries, if the batch has them).

    Example:
        >>> import torch
        >>> from relmo.features import Layers
        >>> layers = Layers(torch.ones(3, 1, 2, 4), torch.tensor([[True, True]]))
        >>> layers.average().shape, layers.lengths.tolist()
        (torch.Size([1, 2, 4]), [2])
    """

    values: Tensor
    mask: Tensor

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each sentence, boundaries included if the batch has them."""
        return self.mask.sum(dim=1)

    def without_boundaries(self) -> Layers:
        """The same without the first and the last vector of each sentence."""
        mask = self.mask[:, 2:]  # (B, T - 2)
        # The closing boundary of a shorter sentence is still inside, and has to become zero.
        return Layers(self.values[:, :, 1:-1] * mask[..., None], mask)

    def average(self) -> Tensor:
        """(B, T, D) the mean of all layers."""
        return self.values.mean(dim=0)

    def lstm(self) -> Tensor:
        """(B, T, D) the mean of the layers 1..L, without that of the token encoder.

        Raises:
            ConfigError: There is one layer only, as static vectors have.
        """
        self._check_contextual("mean of LSTM layers")
        return self.values[1:].mean(dim=0)

    def context(self) -> Tensor:
        """(B, T - 2, D) what both directions of the top layer hold before they read each token.

        That is the forward half of the previous position beside the backward half of the next
        one. The batch must have boundaries: the first token follows the opening boundary.

        Raises:
            ConfigError: There is one layer only, or the dimension is odd.
        """
        self._check_contextual("context")
        if self.values.shape[-1] % 2:
            raise ConfigError(
                f"The vectors have {self.values.shape[-1]} dimensions, expected an even number: "
                "half for each direction. Take the context of a bidirectional model."
            )
        forward, backward = self.values[-1].chunk(2, dim=-1)  # (B, T, D / 2) each
        context = torch.cat([forward[:, :-2], backward[:, 2:]], dim=-1)
        return context * self.mask[:, 2:, None]

    def _check_contextual(self, view: str) -> None:
        if len(self.values) < 2:
            raise ConfigError(
                f"These vectors have one layer, expected several: there is no {view}. "
                "Take the layers of a biLM, or the one layer as it is."
            )


class Features(Protocol):
    """One kind of vectors of tokens. Several kinds side by side are a list of them.

    To float32 rounding, the vectors of a sentence depend on the sentence alone, not on the others
    of its batch. Where there are several layers, layer 0 depends on the word alone.

    Example:
        >>> import torch
        >>> from relmo.features import FeatureStore, Layers
        >>> class Lengths:
        ...     name, identity, n_layers, dim = "lengths", "lengths-1", 1, 1
        ...
        ...     def batch(self, sentences, *, boundaries=False):
        ...         edge = [0.0] if boundaries else []
        ...         rows = [torch.tensor([*edge, *map(len, s), *edge]) for s in sentences]
        ...         ones = [torch.ones(len(row), dtype=torch.bool) for row in rows]
        ...         pad = torch.nn.utils.rnn.pad_sequence
        ...         return Layers(pad(rows, True)[None, ..., None], pad(ones, True))
        >>> stored = FeatureStore("my-store").open(Lengths(), [["A", "cat"], ["Yes"]])
        >>> stored.batch([["A", "cat"]]).values.tolist()
        [[[[1.0], [3.0]]]]
    """

    @property
    def name(self) -> str:
        """For people, such as "en" or "glove"."""

    @property
    def identity(self) -> str:
        """Changes whenever the vectors would: the fingerprint of the weights, for instance."""

    @property
    def n_layers(self) -> int:
        """K, that of the token encoder included."""

    @property
    def dim(self) -> int:
        """D, the length of a vector."""

    def batch(self, sentences: Sentences, *, boundaries: bool = False) -> Layers:
        """The vectors of tokenised sentences, padded to the longest one.

        Args:
            sentences: the tokens of each.
            boundaries: T counts both boundaries too: they come first and last in each row, also
                in that of a sentence without tokens.
        """


def pad_arrays(arrays: Iterable[Array], n_layers: int, dim: int, *, boundaries: bool) -> Layers:
    """Pad the vectors (K, tokens, D) of sentences; boundaries, where there are any, are zeros."""
    inset = 1 if boundaries else 0
    found = list(arrays)
    lengths = np.array([array.shape[1] for array in found], dtype=np.int64) + 2 * inset
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, T)
    values = np.zeros((n_layers, *mask.shape, dim), np.float32)
    for row, array in enumerate(found):
        values[:, row, inset : inset + array.shape[1]] = array
    return Layers(torch.from_numpy(values), torch.from_numpy(mask))
