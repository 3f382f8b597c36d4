"""Word in context (WiC): does a word mean the same in two sentences?

The answer is yes where the cosine of its two vectors reaches a threshold, and the threshold is what
is right most often on other pairs. Every number of the vectors is brought to mean 0 and deviation 1
first, else the few that are large everywhere decide. A vector that knows no context says yes to
every pair in which the word has the same form.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relmo.analysis.kinds import Kinds, contexts_of
from relmo.analysis.measured import accuracies_as_result
from relmo.analysis.probes import MIN_DEVIATION
from relmo.arrays import Array
from relmo.errors import DataError
from relmo.features.layers import Features, Layers
from relmo.features.live import open_features
from relmo.features.static import StaticVectors
from relmo.features.store import FeatureStore
from relmo.files import check_writable
from relmo.inference.model_source import ModelLike
from relmo.results import write_results
from relmo.text.corpus import read_lines

CHUNK_PAIRS = 256
DECIMALS = 6  # of a cosine; what follows is rounding, and no threshold should be chosen by it
_PLACES = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class WordPair:
    """A word in two sentences.

    Attributes:
        word: in its basic form.
        sentences: tokens of both.
        places: of the word in them.
        same: whether it means the same.
    """

    word: str
    sentences: tuple[tuple[str, ...], tuple[str, ...]]
    places: tuple[int, int]
    same: bool


@dataclass(frozen=True)
class PairResult:
    """Accuracies, in percent.

    Attributes:
        names: of the vectors that were compared.
        dev: of each, with the threshold that is best on the training part.
        test: of each, with the one that is best on the training and development parts.
        thresholds: the latter ones.
        majority: of the more frequent answer, on dev and test.
        n_pairs: of the three parts.
    """

    names: tuple[str, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    thresholds: tuple[float, ...]
    majority: tuple[float, float]
    n_pairs: tuple[int, int, int]

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


def probe_wic(
    train: str | Path,
    dev: str | Path,
    test: str | Path,
    *,
    model: ModelLike | None = None,
    static: str | Path | StaticVectors | None = None,
    store: FeatureStore | None = None,
    results: str | Path | None = None,
) -> PairResult:
    r"""Tell whether a word means the same in two sentences, by the cosine of its two vectors.

    Args:
        train: a directory with *.data.txt and *.gold.txt, to choose thresholds on.
        dev: another one; its pairs also help to choose the thresholds for `test`.
        test: what to report.
        model: a name, a path or a loaded model; "en" when neither it nor `static` is given.
        static: static vectors beside the model or alone.
        store: where vectors are kept; the user's cache when None.
        results: a file to write, in the form of `relmo.results`.

    Raises:
        ConfigError: There is neither a model nor static vectors.
        DataError: A part holds no pair, or its files are damaged.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> Path("wic").mkdir()
        >>> _ = Path("wic/one.data.txt").write_text("left\tV\t1-2\tHe left .\tMy own left hand")
        >>> _ = Path("wic/one.gold.txt").write_text("F")
        >>> relmo.probe_wic("wic", "wic", "wic", model="en").names
        ('layer 0', 'layer 1', 'layer 2', 'average', 'context')
    """
    started, folders = time.monotonic(), (train, dev, test)
    if results is not None:
        check_writable(Path(results))
    parts = [read_pairs(folder) for folder in folders]
    features = open_features(model, static, default="en")
    found = compare_pairs(features, *parts, store=store)
    if results is not None:
        files = [path for folder in folders for path in sorted(Path(folder).glob("*.*.txt"))]
        seconds = time.monotonic() - started
        rows, sizes = {**found.rows, "majority": found.majority}, found.n_pairs[1:]
        measured = accuracies_as_result(
            "word in context", rows, sizes, features=features, files=files, seconds=seconds
        )
        write_results(measured, Path(results))
    return found


def read_pairs(directory: str | Path) -> list[WordPair]:
    """Read `NAME.data.txt` and `NAME.gold.txt` of a directory, as the data set has them.

    A line of the first is word, part of speech, places (`2-1`) and two sentences of tokens, with
    tabs between; of the second, T or F.
    """
    if not Path(directory).is_dir():
        raise DataError(
            f"There is no directory {directory}. Give the directory of one part of WiC, with its "
            "*.data.txt and *.gold.txt."
        )
    found = sorted(Path(directory).glob("*.data.txt"))
    if len(found) != 1:
        raise DataError(
            f"{directory} holds {len(found) or 'no'} files *.data.txt; expected one, with "
            "*.gold.txt beside it. Give the directory of one part of WiC."
        )
    (data,) = found
    gold = data.with_name(data.name.replace(".data.txt", ".gold.txt"))
    rows, answers = (list(read_lines(file, is_fixed=True)) for file in (data, gold))
    if len(rows) != len(answers):
        raise DataError(f"{data} has {len(rows):,} lines, {gold} has {len(answers):,}.")
    return [
        _parse(row, answer, f"{data}, line {number}")
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True), start=1)
    ]


def _parse(row: str, answer: str, where: str) -> WordPair:
    columns = row.split("\t")
    numbers = _PLACES.fullmatch(columns[2]) if len(columns) == 5 else None
    if numbers is None:
        raise DataError(
            f"{where}: expected word, part of speech, places as 2-1, and two sentences, with tabs "
            f"between them; found {row[:60]!r}."
        )
    one, other = (tuple(column.split()) for column in columns[3:])
    first, second = int(numbers[1]), int(numbers[2])
    if first >= len(one) or second >= len(other):
        raise DataError(f"{where}: the places are {columns[2]}, but a sentence ends before.")
    if answer.strip() not in ("T", "F"):
        raise DataError(f"{where}: the answer is {answer[:20]!r}; expected T or F.")
    return WordPair(columns[0], (one, other), (first, second), answer.strip() == "T")


def compare_pairs(
    features: Sequence[Features],
    train: Sequence[WordPair],
    dev: Sequence[WordPair],
    test: Sequence[WordPair],
    *,
    store: FeatureStore | None = None,
) -> PairResult:
    """Measure how often the cosine of each kind of vectors tells whether a word means the same.

    Args:
        features: what gives vectors, side by side.
        train: pairs to choose thresholds on.
        dev: pairs to report; they also help to choose the thresholds for `test`.
        test: pairs to report.
        store: where vectors are kept; the user's cache when None.
    """
    parts = {"train": train, "dev": dev, "test": test}
    for name, part in parts.items():
        if not part:
            raise DataError(f"The {name} part holds no pair.")
    kinds, opened = Kinds(features, contexts=True), store or FeatureStore()
    sentences = [s for part in parts.values() for pair in part for s in pair.sentences]
    stored = [opened.open(one, sentences) for one in features]
    first_part, *others = (_read_words(kinds, stored, part) for part in parts.values())
    moments = [(x.mean(axis=0), np.maximum(x.std(axis=0), MIN_DEVIATION)) for x in first_part]
    on_train = _cosines(first_part, moments)
    on_dev, on_test = (_cosines(x, moments) for x in others)
    is_train, is_dev, is_test = (np.array([p.same for p in part]) for part in parts.values())
    accuracies, thresholds = [], []
    for kind in range(len(kinds.names)):
        both = np.append(on_train[kind], on_dev[kind])
        thresholds.append(best_threshold(both, np.append(is_train, is_dev)))
        first = best_threshold(on_train[kind], is_train)
        said = on_dev[kind] >= first, on_test[kind] >= thresholds[-1]
        accuracies.append([_percent(said[0] == is_dev), _percent(said[1] == is_test)])
    on_dev_part, on_test_part = zip(*accuracies, strict=True)
    majority = [max(_percent(same), _percent(~same)) for same in (is_dev, is_test)]
    return PairResult(
        names=kinds.names,
        dev=on_dev_part,
        test=on_test_part,
        thresholds=tuple(thresholds),
        majority=(majority[0], majority[1]),
        n_pairs=(len(train), len(dev), len(test)),
    )


def best_threshold(cosines: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """The cosine from which on "the same" is right most often, above all of them if never."""
    values = np.unique(cosines)
    values = np.append(values, values[-1] + 1)
    yes, no = np.sort(cosines[same]), np.sort(cosines[~same])
    n_right = len(yes) - np.searchsorted(yes, values) + np.searchsorted(no, values)
    return float(values[np.argmax(n_right)])


def _read_words(kinds: Kinds, stored: Sequence[Features], pairs: Sequence[WordPair]) -> list[Array]:
    """Read (2N, D_k) of each kind: the word in the two sentences of each pair."""
    found: list[list[Tensor]] = []
    for start in range(0, len(pairs), CHUNK_PAIRS):
        chunk = pairs[start : start + CHUNK_PAIRS]
        sentences = [sentence for pair in chunk for sentence in pair.sentences]
        places = torch.tensor([place for pair in chunk for place in pair.places])
        batches = [one.batch(sentences, boundaries=True) for one in stored]
        words = [_at(batch, places) for batch in batches]
        contexts = [contexts_of(batch)[torch.arange(len(places)), places] for batch in batches]
        found.append(kinds.views(words, contexts))
    return [torch.cat(parts).numpy() for parts in zip(*found, strict=True)]


def _at(batch: Layers, places: Tensor) -> Tensor:
    """Return the vectors (K, B, D) of one token per sentence; place 0 follows the boundary."""
    return batch.values[:, torch.arange(len(places)), places + 1]


def _cosines(kinds: list[Array], moments: list[tuple[Array, Array]]) -> NDArray[np.float64]:
    """(K, N) of every two vectors that belong together."""
    found = []
    for x, (mean, deviation) in zip(kinds, moments, strict=True):
        centred = (x - mean) / deviation
        unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        cosines: NDArray[np.float64] = (unit[::2] * unit[1::2]).sum(axis=1, dtype=np.float64)
        found.append(cosines.round(DECIMALS))
    return np.stack(found)


def _percent(right: NDArray[np.bool_]) -> float:
    return 100 * float(right.mean())
