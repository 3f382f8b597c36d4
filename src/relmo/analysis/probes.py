"""Linear probes: how much of a token's tag a linear classifier finds in its vector.

Every kind of vectors has a probe of its own: each layer, their average, static vectors. A last one
mixes the layers as ELMo does, γ · Σ softmax(w)_j · layer_j, with w and γ learned beside it. All
probes learn at the same time from the same batches. The vectors come from the feature store: the
biLM runs once per data set.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from relmo.analysis.kinds import Kinds
from relmo.analysis.measured import accuracies_as_result
from relmo.arrays import IntArray
from relmo.config import TrainConfig, check_seed
from relmo.errors import ConfigError, DataError
from relmo.features.layers import Features
from relmo.features.live import open_features
from relmo.features.static import StaticVectors
from relmo.features.store import FeatureStore, StoredFeatures
from relmo.files import check_writable
from relmo.inference.model_source import ModelLike
from relmo.model.scalar_mix import ScalarMix
from relmo.results import Result, write_results
from relmo.text.conllu import TaggedSentence, read_conllu
from relmo.train.examples import Examples
from relmo.train.loop import Metric, train
from relmo.train.module_learner import ModuleLearner

BATCH_TOKENS = 512
LEARNING_RATE = 0.03  # decays to 0; on EWT, both 0.01 and 0.1 end lower after 8 epochs
MIN_DEVIATION = 1e-4  # what hardly differs between tokens is not blown up


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies, in per cent.

    Attributes:
        names: of the kinds of vectors that were probed.
        dev: of each, at its best epoch.
        test: of each, at that epoch.
        mix: what each layer is multiplied by in the learned mix, after the last epoch; empty where
            there is none.
        n_tags: number of distinct tags.
        n_tokens: of the training part.
        n_dev: tokens of the development part.
        n_test: tokens of the test part.
    """

    names: tuple[str, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    mix: tuple[float, ...]
    n_tags: int
    n_tokens: int
    n_dev: int
    n_test: int

    @property
    def best(self) -> str:
        """The name that does best on the development part."""
        return self.names[int(np.argmax(self.dev))]

    @property
    def rows(self) -> dict[str, tuple[float, float]]:
        """Accuracies on dev and test, by name."""
        return dict(zip(self.names, zip(self.dev, self.test, strict=True), strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        return {**fields, "best": self.best}


def probe_pos(
    train: str | Path,
    dev: str | Path,
    test: str | Path,
    *,
    model: ModelLike | None = None,
    static: str | Path | StaticVectors | None = None,
    epochs: int = 8,
    seed: int = 0,
    store: FeatureStore | None = None,
    results: str | Path | None = None,
) -> ProbeResult:
    r"""Predict part-of-speech tags from vectors, by one linear classifier per kind of vectors.

    Args:
        train: a treebank in CoNLL-U to learn from.
        dev: chooses the epoch of each classifier.
        test: what to report.
        model: a name, a path or a loaded model; "en" when neither it nor `static` is given.
        static: static vectors beside the model or alone.
        epochs: how often to read `train`.
        seed: of the order in which it is read.
        store: where vectors are kept; the user's cache when None.
        results: a file to write, in the form of `relmo.results`.

    Raises:
        ConfigError: There is neither a model nor static vectors.
        DataError: A part holds no token.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> words = enumerate([("A", "DET"), ("cat", "NOUN"), ("sat", "VERB")], start=1)
        >>> rows = (f"{i}\t{word}\t_\t{tag}" + 6 * "\t_" for i, (word, tag) in words)
        >>> _ = Path("one.conllu").write_text("\n".join(rows))
        >>> relmo.probe_pos("one.conllu", "one.conllu", "one.conllu", model="en", epochs=1).names
        ('layer 0', 'layer 1', 'layer 2', 'average', 'mix')
    """
    started = time.monotonic()
    if results is not None:
        check_writable(Path(results))
    files = [Path(path) for path in (train, dev, test)]
    parts = [list(read_conllu(path)) for path in files]
    features = open_features(model, static, default="en")
    found = probe_tags(features, *parts, epochs=epochs, seed=seed, store=store)
    if results is not None:
        seconds = time.monotonic() - started
        measured = _as_result(found, features, files, seconds=seconds, seed=seed, epochs=epochs)
        write_results(measured, Path(results))
    return found


def _as_result(
    found: ProbeResult,
    features: Sequence[Features],
    files: Sequence[Path],
    *,
    seconds: float,
    seed: int,
    epochs: int,
) -> Result:
    return accuracies_as_result(
        "part-of-speech probe",
        found.rows,
        (found.n_dev, found.n_test),
        features=features,
        files=files,
        seconds=seconds,
        seeds=[seed],
        settings={"epochs": epochs},
    )


def probe_tags(
    features: Sequence[Features],
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    *,
    epochs: int = 8,
    seed: int = 0,
    store: FeatureStore | None = None,
) -> ProbeResult:
    """Train a linear classifier of tags on each kind of vectors; see `Kinds`.

    Args:
        features: what gives vectors, side by side.
        train: what to learn from.
        dev: chooses the epoch of each classifier.
        test: what to report.
        epochs: how often to read `train`.
        seed: of the order in which it is read.
        store: where vectors are kept; the user's cache when None.
    """
    for name, part in (("train", train), ("dev", dev), ("test", test)):
        if not any(sentence.tokens for sentence in part):
            raise DataError(f"The {name} part holds no token. Give a file in CoNLL-U.")
    if epochs < 1:
        raise ConfigError(f"epochs is {epochs}; expected 1 or more.", settings=["epochs"])
    check_seed(seed)
    tags = sorted({tag for sentence in train for tag in sentence.tags})
    kinds, opened = Kinds(features), store or FeatureStore()
    sentences = [sentence.tokens for part in (train, dev, test) for sentence in part]
    stored = [opened.open(one, sentences) for one in features]
    parts = [_Part.of(kinds, stored, part, tags) for part in (train, dev, test)]
    heads = _Heads(kinds, len(tags))
    heads.standardize(parts[0])
    best = _train_heads(heads, parts, epochs, seed)
    mixes = [head.mix.coefficients() for head in heads.heads if head.mix is not None]
    return ProbeResult(
        names=heads.names,
        dev=tuple(best[0].tolist()),
        test=tuple(best[1].tolist()),
        mix=tuple(mixes[0].tolist()) if mixes else (),
        n_tags=len(tags),
        n_tokens=len(parts[0].tags),
        n_dev=len(parts[1].tags),
        n_test=len(parts[2].tags),
    )


Batch = tuple[list[Tensor], Tensor]  # vectors (B, D_k) of each kind, and tags (B,)


@dataclass(frozen=True)
class _Part:
    """Tokens of a part of the data: where their vectors are stored, and the number of each tag."""

    kinds: Kinds
    stored: Sequence[StoredFeatures]
    rows: Sequence[IntArray]  # (N,) in each of the stored features
    tags: IntArray  # (N,), -1 for a tag that the training part does not have

    @classmethod
    def of(
        cls,
        kinds: Kinds,
        stored: Sequence[StoredFeatures],
        sentences: Sequence[TaggedSentence],
        tags: Sequence[str],
    ) -> _Part:
        numbers = {tag: number for number, tag in enumerate(tags)}
        wanted = np.array([numbers.get(tag, -1) for s in sentences for tag in s.tags])
        tokens = [sentence.tokens for sentence in sentences]
        return cls(kinds, stored, [one.rows(tokens) for one in stored], wanted)

    def read(self, numbers: Sequence[int] | IntArray) -> Batch:
        """Read the vectors and tags of some tokens."""
        chosen = np.sort(np.asarray(numbers))  # neighbours on disk together
        pairs = zip(self.stored, self.rows, strict=True)
        values = [one.tokens(rows[chosen]) for one, rows in pairs]
        return self.kinds.views(values), torch.from_numpy(self.tags[chosen])

    def batches(self) -> Iterator[Batch]:
        """Read all tokens in order."""
        for start in range(0, len(self.tags), BATCH_TOKENS):
            yield self.read(np.arange(start, min(start + BATCH_TOKENS, len(self.tags))))


class _Head(nn.Module):
    """A linear classifier of one kind of vectors, or of several that it mixes."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, kinds: tuple[int, ...], dim: int, n_tags: int) -> None:
        super().__init__()
        self._kinds = kinds
        self.mix = ScalarMix(len(kinds)) if len(kinds) > 1 else None
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))
        self.classify = nn.Linear(dim, n_tags)
        nn.init.zeros_(self.classify.weight)
        nn.init.zeros_(self.classify.bias)

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """Scores (B, C) of the tags, from all kinds of vectors, (B, D_k) each."""
        # As of (x - mean) / deviation, without a copy of x for each.
        weight = self.classify.weight / self.deviation
        return functional.linear(self.select(x), weight, self.classify.bias - weight @ self.mean)

    def select(self, x: Sequence[Tensor]) -> Tensor:
        """Return the vectors (B, D) that are classified, before they are standardized."""
        if self.mix is None:
            return x[self._kinds[0]]
        layers = torch.stack([x[kind] for kind in self._kinds])
        mixed: Tensor = self.mix(layers, torch.ones(layers.shape[1], dtype=torch.bool))
        return mixed


class _Heads(nn.Module):
    """One classifier per kind of vectors, then one per learned mix."""

    def __init__(self, kinds: Kinds, n_tags: int) -> None:
        super().__init__()
        empty = [torch.empty(features.n_layers, 0, features.dim) for features in kinds.features]
        dims = [x.shape[-1] for x in kinds.views(empty)]
        self.names = (*kinds.names, *kinds.mixes)
        chosen = [*((kind,) for kind in range(len(dims))), *kinds.mixes.values()]
        self._heads = nn.ModuleList(_Head(some, dims[some[0]], n_tags) for some in chosen)

    @property
    def heads(self) -> list[_Head]:
        """In the order of the names."""
        return cast(list[_Head], list(self._heads))

    def forward(self, batch: Batch) -> Tensor:
        """Sum the losses of all classifiers: none learns from another."""
        x, tags = batch
        return torch.stack([functional.cross_entropy(head(x), tags) for head in self.heads]).sum()

    @torch.no_grad()
    def standardize(self, part: _Part) -> None:
        """Give every number mean 0 and deviation 1; in a mix, as it is before it learns."""
        n = len(part.tags)
        sums: Any = [(0.0, 0.0)] * len(self.heads)
        for x, _ in part.batches():
            selected = [head.select(x).double() for head in self.heads]
            sums = [
                (total + v.sum(0), squares + v.square().sum(0))
                for (total, squares), v in zip(sums, selected, strict=True)
            ]
        for head, (total, squares) in zip(self.heads, sums, strict=True):
            mean = total / n
            deviation = (squares / n - mean.square()).clamp(min=0).sqrt().clamp(min=MIN_DEVIATION)
            head.mean.copy_(mean)
            head.deviation.copy_(deviation)

    @torch.no_grad()
    def accuracy(self, part: _Part) -> Tensor:
        """Return the per cent of the tokens whose tag each classifier finds."""
        right = torch.zeros(len(self.heads))
        for x, tags in part.batches():
            right += torch.stack([(head(x).argmax(dim=1) == tags).sum() for head in self.heads])
        return 100 * right / len(part.tags)


def _train_heads(heads: _Heads, parts: Sequence[_Part], epochs: int, seed: int) -> Tensor:
    """Return accuracies (2, heads) on dev and test, each at the epoch that is best on dev."""
    first, dev, test = parts
    best = torch.full((2, len(heads.heads)), -1.0)

    def evaluate(module: _Heads) -> dict[str, float]:
        nonlocal best
        scores = torch.stack([module.accuracy(part) for part in (dev, test)])
        best = torch.where(scores[0] > best[0], scores, best)
        return {"accuracy": float(scores[0].mean())}

    learner = ModuleLearner(
        heads,
        loss=lambda module, batch: (module(batch), len(batch[1])),
        evaluate=evaluate,
        optimizer=torch.optim.Adam(heads.parameters()),
        decides=Metric("accuracy", higher_is_better=True),
        unit="words",
    )
    n = len(first.tags)
    data = Examples(range(n), first.read, batch_size=BATCH_TOKENS, length=lambda _: 1, seed=seed)
    config = TrainConfig(
        learning_rate=LEARNING_RATE, decay="linear", epochs=epochs, validate_epochs=1, seed=seed
    )
    train(learner, data, config, n_epoch_units=n)
    return best
