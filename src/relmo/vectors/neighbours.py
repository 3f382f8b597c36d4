"""What is near a word: other words, or occurrences of words in the sentences of a corpus."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError
from relmo.features.static import StaticVectors
from relmo.inference.layer_selection import select_one_layer
from relmo.inference.model import Model
from relmo.progress import progress
from relmo.text.marks import MarkedSentence
from relmo.text.sentences import read_sentences
from relmo.text.vocabulary import SPECIAL
from relmo.vectors.index import Hit, VectorIndex, write_index
from relmo.vectors.vector_files import are_vectors, read_embedded

Layer = Literal["average", "lstm", "top"] | int

CHUNK_WORDS = 8192  # encoded at a time


@dataclass(frozen=True)
class Neighbour:
    """A word and the cosine of its vector with that of the word asked for."""

    word: str
    score: float


def nearest_words(vectors: StaticVectors, word: str, query: Array, k: int) -> list[Neighbour]:
    """The k words whose vectors are nearest to a query (D,), without the word itself."""
    if k < 1:
        raise ConfigError(f"k is {k}; expected 1 or more.")
    matrix = np.asarray(vectors.matrix, np.float32)
    lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(query)
    scores = matrix @ query / np.maximum(lengths, 1e-12)
    order = np.argsort(-scores, kind="stable")
    found = (
        Neighbour(vectors.words[i], float(scores[i])) for i in order if vectors.words[i] != word
    )
    return [neighbour for neighbour, _ in zip(found, range(k), strict=False)]


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
) -> dict[str, list[Neighbour]]:
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


def identify(model: Model, layers: Layer) -> dict[str, Any]:
    """Say what vectors are of: the weights, the layers and the tokenizer."""
    return {"weights": model.fingerprint, "layers": layers, "tokenizer": model.tokenizer}


def index_corpus(
    directory: str | Path,
    model: Model,
    sentences: Iterable[str],
    *,
    layers: Layer = "average",
    stop_words: Iterable[str] = (),
    approximate: bool = False,
) -> VectorIndex:
    """Write an index of every word of some sentences.

    Args:
        directory: a new one.
        model: the model.
        sentences: what to take, as a stream.
        layers: one layer, or the average.
        stop_words: words to leave out, in lower case.
        approximate: make it ready for approximate search as well.
    """
    embedded = _embed(model, sentences, layers)
    return _write(directory, model, embedded, layers, stop_words, approximate)


def index_files(
    directory: str | Path,
    model: Model,
    files: Sequence[str],
    *,
    lines: bool = False,
    language: str = "en",
    layers: Layer = "average",
    stop_words: Iterable[str] = (),
    approximate: bool = False,
) -> VectorIndex:
    """Write an index of files of text, or of vectors that `relmo embed` wrote with this model.

    Args:
        directory: a new one.
        model: the model.
        files: all of text or, as their endings tell, all of vectors.
        lines: a line of text is a sentence; else it is prose.
        language: of prose.
        layers: one layer, or the average.
        stop_words: words to leave out, in lower case.
        approximate: make it ready for approximate search as well.

    Raises:
        ConfigError: The vectors are not those of this model.
    """
    if are_vectors(files):
        stored = (pair for file in files for pair in read_embedded(file, model, layers))
        return _write(directory, model, stored, layers, stop_words, approximate)
    sentences = (s for f in files for s in read_sentences(f, lines=lines, language=language))
    embedded = _embed(model, sentences, layers)
    return _write(directory, model, embedded, layers, stop_words, approximate)


def _embed(
    model: Model, sentences: Iterable[str], layers: Layer
) -> Iterator[tuple[list[str], Array]]:
    tokens: deque[list[str]] = deque()  # of sentences that are being embedded

    def tokenised() -> Iterator[list[str]]:
        for sentence in sentences:
            tokens.append([token.text for token in model.tokenize(sentence)])
            yield tokens[-1]

    for vectors in model.embed(tokenised(), layers=layers):
        yield tokens.popleft(), vectors


def _write(
    directory: str | Path,
    model: Model,
    sentences: Iterable[tuple[list[str], Array]],
    layers: Layer,
    stop_words: Iterable[str],
    approximate: bool,
) -> VectorIndex:
    select_one_layer(layers, model.config.n_outputs)

    def told() -> Iterator[tuple[list[str], Array]]:
        with progress("Indexing", unit="words") as advance:
            for tokens, vectors in sentences:
                yield tokens, vectors
                advance(len(tokens))

    stopped, about = frozenset(stop_words), identify(model, layers)
    return write_index(directory, told(), about=about, stop_words=stopped, approximate=approximate)


def nearest_occurrences(
    index: VectorIndex,
    model: Model,
    sentence: MarkedSentence,
    k: int,
    *,
    exact: bool = False,
) -> list[Hit]:
    """The k occurrences nearest to a marked word, from other sentences than its own.

    `exact` compares with all of them, whatever the index was built for.

    Raises:
        ConfigError: The index was made with another model or tokenizer.
    """
    layers = index.about.get("layers", "average")
    if index.about != identify(model, layers):
        raise ConfigError(
            "The index was made with another model or tokenizer: build it again with this one, or "
            "take that one."
        )
    vectors = model.embed([sentence.tokens], layers=layers)[0]
    query = vectors[sentence.place][None]
    (hits,) = index.search(query, k, without=sentence.tokens, exact=exact)
    return hits
