"""Negative samples of the sampled softmax, and the rows of the softmax that a step touches.

Letters in shapes: M predictions, K samples, R rows, V words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Negative samples, drawn from a log-uniform distribution over ranks; or every word."""

    words: Tensor  # (K,) distinct, sorted
    n_words: int
    n_tries: float  # draws until K words were distinct; infinite for every word

    def log_expected(self, words: Tensor) -> Tensor:
        """Return the log of the expected count of each word in the samples, 1 - (1 - p)^n_tries."""
        # NumPy, here and below: for a few thousand numbers PyTorch's threads are not worth waking.
        p = np.log1p(1 / (words.cpu().numpy() + 1.0)) / math.log1p(self.n_words)
        return torch.from_numpy(np.log(-np.expm1(self.n_tries * np.log1p(-p))))

    def rows_with(self, targets: Tensor) -> SoftmaxRows:
        """Return the rows of the samples and of these targets."""
        if len(self.words) == self.n_words:
            return SoftmaxRows(None, self.n_words, torch.zeros(self.n_words))
        others = np.setdiff1d(targets.cpu().numpy(), self.words.numpy())
        words = torch.cat([self.words, torch.from_numpy(others)])
        return SoftmaxRows(words, len(self.words), -self.log_expected(words))


@dataclass(frozen=True)
class SoftmaxRows:
    """The rows of the softmax that a step touches.

    Attributes:
        words: (R,) their words, the samples first, on the CPU; None is all words in order.
        n_samples: how many belong to samples; the others count only where they are the target.
        correction: (R,) added to the logits: -log of the expected count.
    """

    words: Tensor | None
    n_samples: int
    correction: Tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """Copy these rows of (V, ...); all rows are the tensor itself, detached."""
        if self.words is None:
            return tensor.detach()
        return tensor.detach().index_select(0, self.words.to(tensor.device))

    def places(self, targets: Tensor) -> Tensor:
        """Return (M,) in which of the rows each target is; each must be in one."""
        if self.words is None:
            return targets
        words = self.words.numpy()
        order = words.argsort()
        found = order[words.searchsorted(targets.cpu().numpy(), sorter=order)]
        return torch.from_numpy(found).to(targets.device)


def sample_log_uniform(n_samples: int, n_words: int, generator: torch.Generator) -> Samples:
    """Draw P(k) = log((k + 2) / (k + 1)) / log(V + 1) until `n_samples` words are distinct.

    0, or as many as there are words, gives every word: a full softmax. `generator` is on the CPU.
    """
    if not 0 < n_samples < n_words:
        return Samples(torch.arange(n_words), n_words, math.inf)
    seen = np.zeros(n_words, dtype=bool)
    n_tries = n_seen = 0
    while True:
        uniform = torch.rand(2 * n_samples, generator=generator, dtype=torch.float64).numpy()
        drawn = np.exp(uniform * math.log1p(n_words)).astype(np.int64) - 1
        drawn = np.minimum(drawn, n_words - 1)  # where exp rounded up
        unseen = np.flatnonzero(~seen[drawn])
        words, first = np.unique(drawn[unseen], return_index=True)
        if n_seen + len(words) >= n_samples:
            break
        seen[words] = True
        n_seen += len(words)
        n_tries += len(drawn)
    came = unseen[first]  # at which draw each new word came
    last = np.partition(came, n_samples - n_seen - 1)[n_samples - n_seen - 1]
    seen[words[came <= last]] = True
    return Samples(torch.from_numpy(np.flatnonzero(seen)), n_words, n_tries + int(last) + 1)
