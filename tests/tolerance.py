"""How far two right answers may be apart: by arithmetic, not by what some machine gave.

A processor adds the products of a dot product in the order that its instructions suggest. Whatever
the order, a sum of n terms is off by at most n · u · Σ|term| (Higham, Accuracy and Stability of
Numerical Algorithms, § 4.2), where u = ε/2 is the unit roundoff. Two such sums differ by no more
than twice that: n · ε · Σ|term|.
"""

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
    return n_terms * scale * epsilon(dtype)
