"""Words near a word, by the token encoder, by the softmax and by static vectors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError
from relmo.features.static import StaticVectors
from relmo.inference.model import Model
from relmo.inference.model_source import ModelLike, open_model
from relmo.progress import progress
from relmo.text.marks import has_mark
from relmo.text.vocabulary import SPECIAL

CHUNK_WORDS = 8192  # encoded at a time


@dataclass(frozen=True)
class Neighbour:
    """A word near another.

    Attributes:
        word: the word.
        score: cosine similarity of both vectors.
    """

    word: str
    score: float

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return asdict(self)


@dataclass(frozen=True)
class Neighbours:
    """Words near a word.

    Attributes:
        word: the word.
        by_kind: its neighbours, the nearest first, by each kind of vector: "token", "softmax",
            "static" and "token + static", as far as they are there.
    """

    word: str
    by_kind: Mapping[str, tuple[Neighbour, ...]]

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        found = {kind: [n.as_dict() for n in some] for kind, some in self.by_kind.items()}
        return {"word": self.word, "neighbours": found}


def neighbours(
    word: str,
    model: ModelLike | None = None,
    *,
    static: str | Path | StaticVectors | None = None,
    k: int = 10,
) -> Neighbours:
    """Find the words nearest to a word by its vectors without context.

    The token vector comes from the characters of the word: near are words that look alike. The
    softmax vector predicts the word: near are words that occur in the same places.

    Args:
        word: a word, known to the model or not.
        model: a name, a path or a loaded model; "en" when neither it nor `static` is given.
        static: static vectors, or the file to load them from.
        k: number of neighbours by each kind of vector.

    Raises:
        ConfigError: There is more than one word.
        DataError: The static vectors do not have the word, or the model has no vocabulary.

    Example:
        >>> import relmo
        >>> found = relmo.neighbours("walked", "en", k=2)
        >>> {kind: len(some) for kind, some in found.by_kind.items()}
        {'token': 2, 'softmax': 2}
    """
    if not word.strip():
        raise ConfigError("Expected a word, found an empty one. Give a word.")
    if isinstance(static, str | Path):
        static = StaticVectors.load(static)
    if not (model is None and static is not None and word in static):  # they may hold phrases
        _check_one_word(word)
    if model is None and static is None:
        model = "en"
    loaded = None if model is None else open_model(model)
    return Neighbours(word, nearest_by_kind(word, k, model=loaded, static=static))


def _check_one_word(word: str) -> None:
    if len(word.split()) > 1 or has_mark(word):
        raise ConfigError(
            f"Expected one word, found {word!r:.80}. Give one word. For a word in its sentence, "
            'mark it, "The [cat] sat", and search a corpus (search_corpus) or an index.',
            settings=["corpus", "index"],
        )


def nearest_words(vectors: StaticVectors, word: str, query: Array, k: int) -> tuple[Neighbour, ...]:
    """The k words whose vectors are nearest to a query (D,), without the word itself."""
    if k < 1:
        raise ConfigError(f"k is {k}; expected 1 or more.", settings=["k"])
    matrix = np.asarray(vectors.matrix, np.float32)
    lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(query)
    scores = matrix @ query / np.maximum(lengths, 1e-12)
    order = np.argsort(-scores, kind="stable")
    found = (
        Neighbour(vectors.words[i], float(scores[i])) for i in order if vectors.words[i] != word
    )
    return tuple(neighbour for neighbour, _ in zip(found, range(k), strict=False))


def token_vectors(model: Model, words: Sequence[str]) -> StaticVectors:
    """What the token encoder gives for each word by itself: the same in every context."""
    parts = []
    with progress("Encoding words", len(words), "words") as advance:
        for start in range(0, len(words), CHUNK_WORDS):
            chunk = list(words[start : start + CHUNK_WORDS])
            parts.append(model.encode(chunk))
            advance(len(chunk))
    return StaticVectors(words, np.concatenate(parts))


def vocabulary_of(model: Model) -> list[str]:
    """Return the words of a model's softmax, without its special tokens."""
    if model.vocabulary is None:
        raise DataError(
            "This model has no vocabulary to look for neighbours in. Give a corpus, and look for "
            "occurrences in it."
        )
    return [word for word in model.vocabulary.words if word not in SPECIAL]


def softmax_vectors(model: Model) -> StaticVectors | None:
    """Return the rows of the softmax, which predict the words; None where there is no softmax."""
    if model.softmax is None or model.vocabulary is None:
        return None
    keep = [i for i, word in enumerate(model.vocabulary.words) if word not in SPECIAL]
    matrix = model.softmax.weight[torch.tensor(keep)].float().numpy()
    return StaticVectors([model.vocabulary.words[i] for i in keep], matrix)


def nearest_by_kind(
    word: str, k: int, *, model: Model | None = None, static: StaticVectors | None = None
) -> dict[str, tuple[Neighbour, ...]]:
    """Find the k words nearest to a word by each kind of vector: "token", "softmax", "static".

    With a model and static vectors also by both, "token + static": one behind the other, each of
    length 1, for the words that both know.

    Raises:
        ConfigError: There is neither a model nor static vectors.
        DataError: The static vectors do not know the word, or the model has no vocabulary.
    """
    if model is None and static is None:
        raise ConfigError("There is nothing to compare by: give a model, static vectors, or both.")
    if static is not None and word not in static:
        raise DataError(_unknown_word(word, static))
    found = {}
    if model is not None:
        softmax = softmax_vectors(model)
        tokens = token_vectors(model, vocabulary_of(model))
        found["token"] = nearest_words(tokens, word, model.encode([word])[0], k)
        if softmax is not None and softmax.number(word) is not None:
            found["softmax"] = nearest_words(softmax, word, softmax.vector(word), k)
    if static is not None:
        itself = static.words[static.number(word) or 0]  # perhaps in lower case
        found["static"] = nearest_words(static, itself, static.vector(word), k)
    if model is not None and static is not None:
        common = [i for i, w in enumerate(tokens.words) if w in static]
        words = [*(tokens.words[i] for i in common), word]
        own = np.vstack([tokens.matrix[common], model.encode([word])])
        both = StaticVectors(words, _side_by_side(own, *static.embed([words])))
        found["token + static"] = nearest_words(both, word, both.matrix[-1], k)
    return found


def _side_by_side(*rows: Array) -> Array:
    lengths = (np.linalg.norm(r, axis=1, keepdims=True) for r in rows)
    return np.hstack([r / np.maximum(n, 1e-12) for r, n in zip(rows, lengths, strict=True)])


def _unknown_word(word: str, static: StaticVectors) -> str:
    first, n = word[:1].lower(), len(word)  # few enough to compare with, letter by letter
    like = [w for w in static.words if w[:1].lower() == first and abs(len(w) - n) < 3]
    near = ", ".join(difflib.get_close_matches(word.lower(), like, cutoff=0.75))
    hint = f" Did you mean {near}?" if near else " Give another word, or other vectors."
    return f"{word!r} is not among the {len(static):,} words of the static vectors.{hint}"
