"""ELMo's last step: γ · Σ_j softmax(w)_j · layer_j, learned with the task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from relmo.errors import ConfigError

LAYER_NORM_EPSILON = 1e-13  # as in AllenNLP


class ScalarMix(nn.Module):
    """A weighted sum of a model's layers.

    Args:
        n_layers: how many layers come in, the token encoder's included.
        layer_norm: bring every layer to mean 0 and variance 1 over all real tokens first.
        trainable: False keeps weights and γ as they are.
        weights: what w starts from, before the softmax; zeros (a plain average) when None.
        gamma: what γ starts from.
        dropout: share of the result that is dropped while training.

    Example:
        >>> import relmo
        >>> model = relmo.load("en")
        >>> mix = relmo.ScalarMix(model.config.n_outputs)
        >>> output = model.bilm(model.batch(["The cat sat ."])).without_boundaries()
        >>> mix(output.layers, output.mask).shape
        torch.Size([1, 4, 512])
    """

    def __init__(
        self,
        n_layers: int,
        *,
        layer_norm: bool = False,
        trainable: bool = True,
        weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        start = torch.zeros(n_layers) if weights is None else torch.tensor(weights).float()
        if start.shape != (n_layers,):
            raise ConfigError(
                f"A mix of {n_layers} layers got {start.numel()} weights: give one each."
            )
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(start, requires_grad=trainable)
        self.gamma = nn.Parameter(torch.tensor(float(gamma)), requires_grad=trainable)
        self.dropout = nn.Dropout(dropout)

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        """Mix layers (K, ..., D), real where mask (...) is True, into one (..., D)."""
        mixed: Tensor = self.dropout(self.combine(layers, mask))
        return mixed

    def combine(self, layers: Tensor, mask: Tensor) -> Tensor:
        """The mix without dropout."""
        if len(layers) != len(self.weights):
            raise ConfigError(
                f"This mix is of {len(self.weights)} layers, but {len(layers)} came in: "
                f"build it with ScalarMix({len(layers)})."
            )
        if self.layer_norm:
            layers = torch.stack([_normalize(layer, mask) for layer in layers])
        mixed: Tensor = torch.tensordot(self.coefficients(), layers, dims=1)
        return mixed

    def coefficients(self) -> Tensor:
        """(K,) what each layer is multiplied by: γ · softmax(w)."""
        return self.gamma * torch.softmax(self.weights, dim=0)

    def penalty(self, strength: float) -> Tensor:
        """λ‖w‖², to be added to a task's loss: a large λ keeps the mix near the average."""
        return strength * self.weights.square().sum()


def _normalize(layer: Tensor, mask: Tensor) -> Tensor:
    """Mean 0, variance 1 over all numbers of all real tokens together, as AllenNLP does."""
    real = mask[..., None].to(layer.dtype)  # (..., 1)
    n = (real.sum() * layer.shape[-1]).clamp(min=1)
    mean = (layer * real).sum() / n
    variance = ((layer - mean) * real).square().sum() / n
    return (layer - mean) / torch.sqrt(variance + LAYER_NORM_EPSILON)
