"""Linear probes: how much of a token's part of speech a linear classifier finds in its vector.

Every kind of vector has a probe of its own: each layer, their average, static vectors. A last one
may mix some kinds as ELMo does, γ · Σ softmax(w)_j · layer_j, with w and γ learned beside it. All
learn at the same time from the same batches; vectors are computed once and wait in a temporary
file, so that memory does not grow with the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from relmo.arrays import Array, IntArray
from relmo.errors import ConfigError, DataError
from relmo.model.scalar_mix import ScalarMix
from relmo.progress import progress
from relmo.text.conllu import TaggedSentence

Embed = Callable[[list[tuple[str, ...]]], Iterable[Iterable[Array]]]  # K of (tokens, D_k) for each

BATCH_TOKENS = 512
CHUNK_SENTENCES = 256
LEARNING_RATE = 0.03  # falls to 0; on EWT, both 0.01 and 0.1 end lower after 8 epochs
MIN_DEVIATION = 1e-4  # what hardly differs between tokens is not blown up


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies, in percent.

    Attributes:
        names: of the vectors that were probed.
        dev: of each, at its best epoch.
        test: of each, at that epoch.
        mix: what each of the mixed kinds was multiplied by in the end; empty where none are.
        n_tags: how many tags there are.
        n_tokens: of the training part.
    """

    names: tuple[str, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    mix: tuple[float, ...]
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
    mixed: Sequence[int] = (),
    epochs: int = 8,
    seed: int = 0,
) -> ProbeResult:
    """Train a linear classifier of tags on each of K kinds of vectors.

    Args:
        embed: gives K arrays (tokens, D_k), or one of (K, tokens, D), for each sentence.
        names: of the K kinds.
        train: what to learn from.
        dev: chooses the epoch.
        test: what to report.
        mixed: numbers of kinds, of one length, of which a mix is learned too; its name is "mix".
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
        parts = [
            _Vectors.of(Path(folder, name), embed, part, tags)
            for name, part in (("train", train), ("dev", dev), ("test", test))
        ]
        sources: list[tuple[int, ...]] = [(kind,) for kind in range(len(names))]
        if mixed:
            names, sources = [*names, "mix"], [*sources, tuple(mixed)]
        probes = [_Probe(kinds, parts[0].dims[kinds[0]], len(tags)) for kinds in sources]
        _standardize(probes, parts[0])
        on_dev, on_test = _learn(probes, parts, epochs, seed)
    mix = probes[-1].mix
    weights = () if mix is None else tuple(mix.coefficients().tolist())
    return ProbeResult(tuple(names), on_dev, on_test, weights, len(tags), len(parts[0].tags))


@dataclass(frozen=True)
class _Vectors:
    """Vectors of a part of the text, on disk, and the number of each token's tag (-1: unknown)."""

    values: NDArray[np.float16]  # (N, W): all kinds of a token side by side
    dims: list[int]  # of each kind; they sum up to W
    tags: IntArray  # (N,)

    @classmethod
    def of(
        cls, path: Path, embed: Embed, sentences: Sequence[TaggedSentence], tags: Sequence[str]
    ) -> _Vectors:
        numbers = {tag: number for number, tag in enumerate(tags)}
        wanted = np.array([numbers.get(tag, -1) for s in sentences for tag in s.tags])
        dims: list[int] = []
        with path.open("wb") as file, progress("Embedding", len(wanted), "words") as advance:
            for start in range(0, len(sentences), CHUNK_SENTENCES):
                chunk = [s.tokens for s in sentences[start : start + CHUNK_SENTENCES]]
                for kinds in map(list, embed(chunk)):
                    dims = [kind.shape[1] for kind in kinds]
                    file.write(np.concatenate(kinds, axis=1, dtype=np.float16).tobytes())
                advance(sum(map(len, chunk)))
        return cls(np.memmap(path, np.float16, "r", shape=(len(wanted), sum(dims))), dims, wanted)

    def batches(self, order: IntArray) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Vectors (B, D_k) of each kind and tags (B,) of some tokens, some at a time."""
        for start in range(0, len(order), BATCH_TOKENS):
            rows = np.sort(order[start : start + BATCH_TOKENS])
            x = torch.from_numpy(self.values[rows].astype(np.float32))
            yield x.split(self.dims, dim=1), torch.from_numpy(self.tags[rows])


class _Probe(nn.Module):
    """A linear classifier of one kind of vectors, or of several that it mixes."""

    def __init__(self, kinds: tuple[int, ...], dim: int, n_tags: int) -> None:
        super().__init__()
        self._kinds = kinds
        self.mix = ScalarMix(len(kinds)) if len(kinds) > 1 else None
        self.mean, self.deviation = torch.zeros(dim), torch.ones(dim)
        self.classify = nn.Linear(dim, n_tags)
        nn.init.zeros_(self.classify.weight)
        nn.init.zeros_(self.classify.bias)

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """Scores (B, C) of the tags, from all kinds of vectors, (B, D_k) each."""
        # As of (x - mean) / deviation, without a copy of x for each.
        weight = self.classify.weight / self.deviation
        return functional.linear(self.select(x), weight, self.classify.bias - weight @ self.mean)

    def select(self, x: Sequence[Tensor]) -> Tensor:
        """The vectors (B, D) that are classified, before they are standardized."""
        if self.mix is None:
            return x[self._kinds[0]]
        layers = torch.stack([x[kind] for kind in self._kinds])
        mixed: Tensor = self.mix(layers, torch.ones(layers.shape[1], dtype=torch.bool))
        return mixed


@torch.no_grad()
def _standardize(probes: Sequence[_Probe], train: _Vectors) -> None:
    """Let every number have mean 0 and deviation 1; in a mix, as it is before it learns."""
    n = len(train.tags)
    sums: Any = [(0.0, 0.0)] * len(probes)
    for x, _ in train.batches(np.arange(n)):
        selected = [probe.select(x).double() for probe in probes]
        sums = [
            (total + v.sum(0), squares + v.square().sum(0))
            for (total, squares), v in zip(sums, selected, strict=True)
        ]
    for probe, (total, squares) in zip(probes, sums, strict=True):
        mean = total / n
        deviation = (squares / n - mean.square()).clamp(min=0).sqrt().clamp(min=MIN_DEVIATION)
        probe.mean, probe.deviation = mean.float(), deviation.float()


def _learn(
    probes: Sequence[_Probe], parts: Sequence[_Vectors], epochs: int, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Accuracies on dev and test of each probe, at the epoch that is its best on dev."""
    train, *held_out = parts
    optimizer = torch.optim.Adam(nn.ModuleList(probes).parameters(), LEARNING_RATE)
    rng = np.random.default_rng(seed)
    n, n_seen = len(train.tags), 0
    best = torch.full((2, len(probes)), -1.0)
    with progress("Probing", epochs * n, "words") as advance:
        for _ in range(epochs):
            for x, tags in train.batches(rng.permutation(n)):
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - n_seen / (epochs * n))
                losses = [functional.cross_entropy(probe(x), tags) for probe in probes]
                torch.stack(losses).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                n_seen += len(tags)
                advance(len(tags))
            scores = torch.stack([_accuracy(part, probes) for part in held_out])
            best = torch.where(scores[0] > best[0], scores, best)
    on_dev, on_test = best.tolist()
    return tuple(on_dev), tuple(on_test)


@torch.no_grad()
def _accuracy(part: _Vectors, probes: Sequence[_Probe]) -> Tensor:
    """Percent of the tokens whose tag is found, by each probe."""
    right = torch.zeros(len(probes))
    for x, tags in part.batches(np.arange(len(part.tags))):
        right += torch.stack([(probe(x).argmax(dim=1) == tags).sum() for probe in probes])
    return 100 * right / len(part.tags)
