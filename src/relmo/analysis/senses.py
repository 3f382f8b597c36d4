"""Senses of a word: its occurrences in a text, grouped by their vectors in context.

Only sentences that hold the word are tokenised and embedded. Each group is described by its most
typical occurrences, those nearest to its centre, and by the words that are more frequent around
them than in other groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relmo.analysis.groups import distances, group, import_sklearn, level, project, reduce
from relmo.analysis.occurrences import Occurrence, find_occurrences
from relmo.arrays import Array
from relmo.config import check_seed
from relmo.errors import ConfigError, DataError
from relmo.inference.layer_selection import LayerSpec, select_one_layer
from relmo.inference.model import Model
from relmo.inference.model_source import ModelLike, open_model
from relmo.progress import progress
from relmo.text.reading import PROSE, TextOptions, TextReader, TextSource

MIN_OCCURRENCES = 4
CONTEXT_TOKENS = 4  # on either side of a word: those that may tell its sense
N_WORDS = 6  # that are named for a sense
PRIOR_WORDS = 20  # how many words the prior counts for, against chance in small groups


@dataclass(frozen=True)
class Sense:
    """A group of occurrences.

    Attributes:
        members: numbers of the occurrences, the most typical first.
        words: words that stand near it more often than in other groups.
    """

    members: tuple[int, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Senses:
    """The senses of a word, as clusters of its occurrences.

    Attributes:
        words: the words that were looked for.
        n_found: how often they occur in the text.
        occurrences: the occurrences that were clustered, in the order of the text.
        senses: the clusters, the largest first.
        points: (N, 2) where a picture shows each occurrence.
    """

    words: tuple[str, ...]
    n_found: int
    occurrences: tuple[Occurrence, ...]
    senses: tuple[Sense, ...]
    points: Array

    @property
    def summary(self) -> str:
        """How many occurrences and groups there are."""
        n, n_senses = len(self.occurrences), len(self.senses)
        some = (
            f"{n:,} occurrences" if n == self.n_found else f"{n:,} of {self.n_found:,} occurrences"
        )
        return f"{some} in {n_senses} groups" if n_senses > 1 else f"{some} in one group"

    def examples(self, sense: Sense, n: int) -> list[int]:
        """Numbers of the n most typical occurrences, or fewer, no two between the same words."""
        by_neighbours: dict[tuple[str, ...], int] = {}
        for number in sense.members:
            by_neighbours.setdefault(tuple(self.occurrences[number].nearby(1)), number)
        return list(by_neighbours.values())[:n]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the senses, and each occurrence with its sense (from 0) and point."""
        sense_of = {n: i for i, sense in enumerate(self.senses) for n in sense.members}
        occurrences = [
            {
                **{"sentence": o.sentence, "start": o.word.start, "end": o.word.end},
                **{"sense": sense_of[n], "x": round(float(x), 4), "y": round(float(y), 4)},
            }
            for n, (o, (x, y)) in enumerate(zip(self.occurrences, self.points, strict=True))
        ]
        senses = [
            {"size": len(s.members), "members": list(s.members), "words": list(s.words)}
            for s in self.senses
        ]
        head = {"words": list(self.words), "found": self.n_found}
        return {**head, "senses": senses, "occurrences": occurrences}


@dataclass(frozen=True)
class SenseOptions:
    """How occurrences are clustered.

    Attributes:
        layers: which vectors: one layer or a weighted sum, as for `Model.embed`. "lstm", the mean
            of layers 1 to L, leaves out layer 0, which does not depend on the context.
        n_senses: number of clusters; chosen from the data when None, and that may be one.
        limit: cluster at most this many occurrences, a random sample of more.
        seed: random seed of the sample and the clustering.

    Example:
        >>> import relmo
        >>> relmo.SenseOptions(n_senses=2).layers
        'lstm'
    """

    layers: LayerSpec = "lstm"
    n_senses: int | None = None
    limit: int = 1000
    seed: int = 0


def find_senses(
    words: str | Sequence[str],
    corpus: TextSource,
    model: ModelLike = "en",
    *,
    options: SenseOptions = SenseOptions(),  # noqa: B008 - frozen
    text_options: TextOptions = PROSE,
    pictures: str | Path | Sequence[str | Path] = (),
) -> Senses:
    """Cluster the occurrences of a word in a text by sense.

    Args:
        words: the word, or several forms of it; case does not matter.
        corpus: files, directories, patterns or "-".
        model: a name, a path or a loaded model.
        options: how occurrences are clustered.
        text_options: how to read the text; by default prose.
        pictures: a file to draw the senses into, .png, .svg or .html, or several.

    Raises:
        ConfigError: A word is not one token, or scikit-learn is not installed.
        DataError: There are too few occurrences.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> now = [f"At present {he} is {ill}." for he in ("he", "she") for ill in ("ill", "old")]
        >>> gift = [f"A present from {me} to {us}." for me in ("me", "him") for us in ("us", "you")]
        >>> _ = Path("text.txt").write_text(" ".join(now + gift))
        >>> found = relmo.find_senses("present", "text.txt", options=relmo.SenseOptions(n_senses=2))
        >>> [len(sense.members) for sense in found.senses]
        [4, 4]
    """
    from relmo.analysis.picture import check_picture, write_picture  # it draws what is defined here

    import_sklearn()  # before a large text is read
    files = [Path(file) for file in ([pictures] if isinstance(pictures, str | Path) else pictures)]
    for file in files:
        check_picture(file)
    reader = TextReader(corpus, text_options)
    forms = [words] if isinstance(words, str) else words
    found = group_senses(open_model(model), forms, reader, options)
    for file in files:
        write_picture(found, file)
    return found


def group_senses(
    model: Model,
    words: Sequence[str],
    sentences: Iterable[str],
    options: SenseOptions = SenseOptions(),  # noqa: B008 - frozen
) -> Senses:
    """Cluster the occurrences of a word in some sentences by sense.

    Args:
        model: the model.
        words: the word, or several forms of it; case does not matter.
        sentences: where to look for it, read once.
        options: how occurrences are clustered.

    Raises:
        ConfigError: A word is not one token, a layer is not there, or scikit-learn is not.
        DataError: There are too few occurrences.
    """
    layers, limit, seed = options.layers, options.limit, options.seed
    import_sklearn()  # before a large text is read
    select_one_layer(layers, model.config.n_outputs)
    _check(words, options)
    occurrences, n_found = find_occurrences(
        sentences, words, model.tokenize, limit=limit, seed=seed
    )
    if n_found < MIN_OCCURRENCES:
        times = f"{n_found or 'no'} time{'s' * (n_found != 1)}"
        raise DataError(
            f"{' or '.join(words)} occurs {times} in the text as a token; expected "
            f"{MIN_OCCURRENCES} or more. Check the spelling, or give more text."
        )
    first = np.array([occurrence.begins for occurrence in occurrences])
    vectors = reduce(level(_embed(model, occurrences, layers), first))
    labels = group(vectors, options.n_senses, seed)
    members = [_by_distance(vectors, labels == label) for label in range(labels.max() + 1)]
    names = _characteristic_words(occurrences, members, {word.casefold() for word in words})
    senses = tuple(Sense(*pair) for pair in zip(members, names, strict=True))
    points = project(vectors, seed)
    return Senses(tuple(words), n_found, tuple(occurrences), senses, points)


def _check(words: Sequence[str], options: SenseOptions) -> None:
    check_seed(options.seed)
    if not words:
        raise ConfigError("There is no word to look for. Give one, or several forms of one.")
    if options.n_senses is not None and options.n_senses < 1:
        raise ConfigError(
            f"n_senses is {options.n_senses}; expected 1 or more, or none to choose the number "
            "from the data.",
            settings=["n_senses"],
        )
    if options.limit < MIN_OCCURRENCES:
        raise ConfigError(
            f"limit is {options.limit}; expected {MIN_OCCURRENCES} or more.", settings=["limit"]
        )


def _embed(model: Model, occurrences: Sequence[Occurrence], layers: LayerSpec) -> Array:
    """Embed each sentence once, and return the vectors (N, D) of the occurrences."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, occurrence in enumerate(occurrences):
        numbers.setdefault(tuple(t.text for t in occurrence.tokens), []).append(number)
    rows = np.empty((len(occurrences), model.config.output_dim), np.float32)
    with progress("Embedding", len(numbers), "sentences") as advance:
        embedded = model.embed(iter(numbers), layers=layers)
        for some, vectors in zip(numbers.values(), embedded, strict=True):
            places = [occurrences[number].place for number in some]
            rows[some] = vectors[places]
            advance(1)
    return rows


def _by_distance(vectors: Array, chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    """Numbers of the chosen ones, the nearest to their centre first."""
    numbers = np.flatnonzero(chosen)
    order = np.argsort(distances(vectors[numbers]), kind="stable")
    return tuple(int(number) for number in numbers[order])


def _characteristic_words(
    occurrences: Sequence[Occurrence], groups: Sequence[Sequence[int]], left_out: set[str]
) -> Iterator[tuple[str, ...]]:
    """Words that stand near those of a group rather than of the others, by log-odds.

    Monroe, Colaresi and Quinn (2008): with a prior in proportion to all counts, in units of the
    deviation that chance would have. A lone group is held against the rest of its sentences.
    """

    def count(numbers: Iterable[int], *, far: bool = False) -> Counter[str]:
        found: Counter[str] = Counter()
        for number in numbers:
            near = occurrences[number].nearby(CONTEXT_TOKENS)
            tokens = [t.text.casefold() for t in occurrences[number].tokens] if far else near
            found.update(t for t in set(tokens) - left_out if any(map(str.isalnum, t)))
        return found

    near = [count(numbers) for numbers in groups]
    total = sum(near, Counter()) if len(near) > 1 else count(groups[0], far=True)
    for inside in near:
        outside = total - inside
        n_inside, n_outside, n_total = (sum(c.values()) for c in (inside, outside, total))
        scores: dict[str, float] = {}
        for word, n in inside.items():
            prior = PRIOR_WORDS * (total[word] + 1) / (n_total + len(total) + 1)  # never all
            one, other = n + prior, outside[word] + prior
            odds = math.log(one / (n_inside + PRIOR_WORDS - one))
            odds -= math.log(other / (n_outside + PRIOR_WORDS - other))
            scores[word] = odds / math.sqrt(1 / one + 1 / other)
        best = sorted(scores, key=lambda word: (-scores[word], word))[:N_WORDS]
        yield tuple(word for word in best if scores[word] > 1)
