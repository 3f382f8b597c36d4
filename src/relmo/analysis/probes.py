"""Linear probes: how much of a token's part of speech a linear classifier finds in its vector.

Every layer has a probe of its own, and so has their average. All of them learn at the same time
from the same batches; vectors are computed once and wait in a temporary file, so that memory does
not grow with the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from relmo.errors import ConfigError, DataError
from relmo.progress import progress
from relmo.text.conllu import TaggedSentence

Embed = Callable[[list[tuple[str, ...]]], list[NDArray[np.float32]]]  # (K, tokens, D) a sentence

BATCH_TOKENS = 512
CHUNK_SENTENCES = 256
LEARNING_RATE = 3e-3
MIN_DEVIATION = 1e-4  # what hardly differs between tokens is not blown up


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies, in percent.

    Attributes:
        names: of the vectors that were probed.
        dev: of each, at its best epoch.
        test: of each, at that epoch.
        n_tags: how many tags there are.
        n_tokens: of the training part.
    """

    names: tuple[str, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    n_tags: int
    n_tokens: int

    @property
    def best(self) -> str:
        """The name that does best on the development part."""
        return self.names[int(np.argmax(self.dev))]


def probe(
    embed: Embed,
    names: Sequence[str],
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    *,
    epochs: int = 8,
    seed: int = 0,
) -> ProbeResult:
    """Train a linear classifier of tags on each of K kinds of vectors.

    Args:
        embed: gives (K, tokens, D) for each sentence.
        names: of the K kinds.
        train: what to learn from.
        dev: chooses the epoch.
        test: what to report.
        epochs: how often to read `train`.
        seed: of the order in which it is read.
    """
    for name, part in (("train", train), ("dev", dev), ("test", test)):
        if not any(sentence.tokens for sentence in part):
            raise DataError(f"The {name} part holds no token. Give a file in CoNLL-U.")
    if epochs < 1:
        raise ConfigError(f"--epochs is {epochs}; expected 1 or more.")
    tags = sorted({tag for sentence in train for tag in sentence.tags})
    with tempfile.TemporaryDirectory(prefix="relmo-probe-") as folder:
        first, second, third = (
            _Vectors.of(Path(folder, name), embed, part, tags)
            for name, part in (("train", train), ("dev", dev), ("test", test))
        )
        on_dev, on_test = _learn(first, second, third, len(tags), epochs, seed)
    return ProbeResult(tuple(names), tuple(on_dev), tuple(on_test), len(tags), len(first.tags))


@dataclass(frozen=True)
class _Vectors:
    """Vectors of a part of the text, on disk, and the number of each token's tag (-1: unknown)."""

    values: NDArray[np.float16]  # (N, K, D)
    tags: NDArray[np.int64]  # (N,)

    @classmethod
    def of(
        cls, path: Path, embed: Embed, sentences: Sequence[TaggedSentence], tags: Sequence[str]
    ) -> _Vectors:
        numbers = {tag: number for number, tag in enumerate(tags)}
        wanted = np.array([numbers.get(tag, -1) for s in sentences for tag in s.tags])
        shape: tuple[int, ...] = ()
        with path.open("wb") as file, progress("Embedding", len(wanted), "words") as advance:
            for start in range(0, len(sentences), CHUNK_SENTENCES):
                chunk = [s.tokens for s in sentences[start : start + CHUNK_SENTENCES]]
                for vectors in embed(chunk):
                    rows = vectors.swapaxes(0, 1)  # (tokens, K, D)
                    shape = rows.shape[1:]
                    file.write(np.ascontiguousarray(rows, np.float16).tobytes())
                advance(sum(map(len, chunk)))
        return cls(np.memmap(path, np.float16, "r", shape=(len(wanted), *shape)), wanted)

    def batches(self, order: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor]]:
        """Vectors (K, B, D) and tags (B,) of some tokens, some at a time."""
        for start in range(0, len(order), BATCH_TOKENS):
            rows = np.sort(order[start : start + BATCH_TOKENS])
            x = torch.from_numpy(self.values[rows].astype(np.float32)).transpose(0, 1)
            yield x, torch.from_numpy(self.tags[rows])


def _learn(
    train: _Vectors, dev: _Vectors, test: _Vectors, n_tags: int, epochs: int, seed: int
) -> tuple[list[float], list[float]]:
    """Accuracies on dev and test of each kind, at the epoch that is its best on dev."""
    mean, deviation = _moments(train)  # (K, 1, D)
    n_kinds, _, dim = mean.shape
    weight = torch.zeros(n_kinds, dim, n_tags, requires_grad=True)
    bias = torch.zeros(n_kinds, 1, n_tags, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], LEARNING_RATE)
    rng = np.random.default_rng(seed)

    def logits(x: Tensor) -> Tensor:  # (K, B, D) to (K, B, C)
        return torch.baddbmm(bias, (x - mean) / deviation, weight)

    best = torch.full((2, n_kinds), -1.0)
    with progress("Probing", epochs * len(train.tags), "words") as advance:
        for epoch in range(epochs):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1 - epoch / epochs)
            for x, tags in train.batches(rng.permutation(len(train.tags))):
                found = logits(x).flatten(0, 1)
                loss = functional.cross_entropy(found, tags.repeat(n_kinds), reduction="sum")
                (loss / len(tags)).backward()
                optimizer.step()
                optimizer.zero_grad()
                advance(len(tags))
            with torch.no_grad():
                scores = torch.stack([_accuracy(part, logits) for part in (dev, test)])
            best = torch.where(scores[0] > best[0], scores, best)
    on_dev, on_test = best.tolist()
    return on_dev, on_test


def _moments(train: _Vectors) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (K, 1, D) of every number of the vectors."""
    n, total, squares = len(train.tags), 0.0, 0.0
    sums: Any = total, squares
    for x, _ in train.batches(np.arange(n)):
        x = x.double()
        sums = sums[0] + x.sum(1, keepdim=True), sums[1] + x.square().sum(1, keepdim=True)
    mean = sums[0] / n
    deviation = (sums[1] / n - mean.square()).clamp(min=0).sqrt().clamp(min=MIN_DEVIATION)
    return mean.float(), deviation.float()


def _accuracy(part: _Vectors, logits: Callable[[Tensor], Tensor]) -> Tensor:
    """(K,) percent of the tokens whose tag is found."""
    right: Any = 0
    for x, tags in part.batches(np.arange(len(part.tags))):
        right = right + (logits(x).argmax(dim=2) == tags).sum(dim=1)
    return torch.as_tensor(100 * right / len(part.tags))
