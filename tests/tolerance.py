"""How far two right answers may be apart: by arithmetic, not by what some machine gave.

A processor adds the products of a dot product in the order that its instructions suggest. Whatever
the order, a sum of n terms is off by at most n · u · Σ|term| (Higham, Accuracy and Stability of
Numerical Algorithms, § 4.2), where u = ε/2 is the unit roundoff. Two such sums differ by no more
than twice that: n · ε · Σ|term|. Roundings of many terms go up as often as down; with a chance of
less than 1e-13 a number is off by more than 8 · √n · u · Σ|term| (Higham and Mary 2019, "A new
approach to probabilistic rounding error analysis", with λ = 8).
"""

import math

import numpy as np


def epsilon(dtype=np.float32) -> float:
    """The gap between 1 and the next number: 2^-23 for float32."""
    return float(np.finfo(dtype).eps)


def rounding(n_terms: int, scale: float = 1.0, dtype=np.float32) -> float:
    """How much two orders of adding the same terms may differ.

    Args:
        n_terms: how many are added into one number; where sums go into further sums (the layers of
            a network, the steps of an LSTM), all of them along the longest way.
        scale: of Σ|term|, the sum of the sizes of what is added. For a dot product that is at most
            the product of both lengths. For sums that go into sums, the largest on the way: gates,
            tanh and clips do not enlarge an error, and weights that do belong into the scale.
        dtype: of the numbers that are added.
    """
    return min(n_terms, 8 * math.sqrt(n_terms)) * scale * epsilon(dtype)


def network_rounding(config, n_tokens: int, scale: float = 5.0) -> float:
    """How much a biLM's vectors may differ by the order in which its products are added.

    Args:
        config: a `ModelConfig`.
        n_tokens: of the longest sentence, over which the LSTMs carry what rounding did.
        scale: of the values; 5 is what clips of 3 and residual connections leave.
    """
    encoder, lstm = config.encoder, config.lstm
    n_filters = sum(n for _, n in encoder.filters)
    widest = max((width for width, _ in encoder.filters), default=0)
    in_encoder = widest * encoder.character_dim + (encoder.n_highway + 1) * n_filters
    in_cell = 2 * lstm.projection_dim + lstm.cell_dim
    return rounding(in_encoder + lstm.n_layers * (n_tokens + 2) * in_cell, scale)
