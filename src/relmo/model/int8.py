"""Dynamic int8 quantization: weights once, with one scale per row; activations row by row.

Each row of activations has a scale of its own, so that a sentence's vectors do not depend on the
others of its batch here either. Products are int8 × int8 → int32, by PyTorch's integer matrix
product.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from relmo.errors import ConfigError
from relmo.model import kernels


class Int8Matrix:
    """A weight (N, K) in int8, and the scale of each row, (N,)."""

    def __init__(self, weight: Tensor) -> None:
        # PyTorch's product is wrong for a column; and for a row where AVX-512 lacks VNNI, even
        # with weights of 7 bits.
        if min(weight.shape) < 2:
            raise ConfigError("int8 needs matrices of two rows and columns or more. Use float32.")
        limit = weight_limit()
        weight = weight.detach().float()
        self.scales = weight.abs().amax(dim=1).clamp(min=1e-30) / limit
        self.values = (weight / self.scales[:, None]).round().to(torch.int8)

    def times(self, x: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the product x Wᵀ in int32, (M, N), and the scales of the rows of x, (M,)."""
        q, scales = quantize(x)
        return torch._int_mm(q, self.values.t(), out=out), scales

    def apply(self, x: Tensor, clip: float | None = None, out: Tensor | None = None) -> Tensor:
        """Return the product x Wᵀ in float32, (M, N), clipped."""
        product, row_scales = self.times(x)
        bound = math.inf if clip is None else clip
        if kernels.loops is None:
            return (product * row_scales[:, None] * self.scales).clamp(-bound, bound)
        y = x.new_empty(product.shape) if out is None else out
        addresses = (t.data_ptr() for t in (product, row_scales, self.scales, y))
        kernels.loops.scale(*addresses, *y.shape, bound)
        return y


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row of x (M, K) to int8, its largest magnitude to 127; and the scales, (M,)."""
    if kernels.loops is None:
        largest = x.abs().amax(dim=1)
        factors = torch.where(largest > 0, 127 / largest, 0.0)
        return (x * factors[:, None]).round().to(torch.int8), largest / 127
    x = x.contiguous()
    q, scales = torch.empty_like(x, dtype=torch.int8), x.new_empty(len(x))
    kernels.loops.quantize(x.data_ptr(), q.data_ptr(), scales.data_ptr(), *x.shape)
    return q, scales


@cache
def weight_limit() -> int:
    """The largest weight in int8: 127, or 63 on processors that add two products in 16 bits.

    Those without an instruction for int8 dot products saturate there; one bit less is always safe.
    """
    if not torch.backends.mkldnn.is_available():
        raise ConfigError(
            "This build of PyTorch has no int8 engine (oneDNN) for this processor. "
            'Use precision="float32".'
        )
    for limit in (127, 63):
        a = torch.full((32, 64), 127, dtype=torch.int8)
        b = torch.full((64, 32), limit, dtype=torch.int8)
        if bool((torch._int_mm(a, b) == 64 * 127 * limit).all()):
            return limit
    raise ConfigError('PyTorch\'s int8 matrix product is wrong here. Use precision="float32".')


def describe() -> str:
    """What int8 products are computed with here, or why they are not."""
    try:
        bits = {127: 8, 63: 7}[weight_limit()]
    except ConfigError as error:
        return f"none: {error}"
    return f"oneDNN, weights of {bits} bits"
