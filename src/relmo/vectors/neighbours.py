"""What is near a word: other words, or occurrences of words in the sentences of a corpus."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from relmo.errors import ConfigError, DataError
from relmo.formats import ModelContents
from relmo.progress import progress
from relmo.text.marks import MarkedSentence
from relmo.text.vocabulary import SPECIAL
from relmo.vectors.embedder import Embedder
from relmo.vectors.index import Hit, VectorIndex, write_index
from relmo.vectors.static import StaticVectors

Array = NDArray[np.float32]
Layer = Literal["average", "top"] | int

CHUNK_WORDS = 8192  # encoded at a time


@dataclass(frozen=True)
class Neighbour:
    """A word and the cosine of its vector with that of the word asked for."""

    word: str
    score: float


def nearest_words(vectors: StaticVectors, word: str, query: Array, k: int) -> list[Neighbour]:
    """The k words whose vectors are nearest to a query (D,), without the word itself."""
    if k < 1:
        raise ConfigError(f"-k is {k}; expected 1 or more.")
    matrix = np.asarray(vectors.matrix, np.float32)
    lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(query)
    scores = matrix @ query / np.maximum(lengths, 1e-12)
    order = np.argsort(-scores, kind="stable")
    found = (
        Neighbour(vectors.words[i], float(scores[i])) for i in order if vectors.words[i] != word
    )
    return [neighbour for neighbour, _ in zip(found, range(k), strict=False)]


def token_vectors(embedder: Embedder, words: Sequence[str]) -> StaticVectors:
    """What the token encoder gives for each word by itself: the same in every context."""
    parts = []
    with progress("Encoding words", len(words), "words") as advance:
        for start in range(0, len(words), CHUNK_WORDS):
            chunk = list(words[start : start + CHUNK_WORDS])
            parts.append(embedder.encode(chunk))
            advance(len(chunk))
    return StaticVectors(words, np.concatenate(parts))


def vocabulary_of(contents: ModelContents) -> list[str]:
    """The words of a model's softmax that are words."""
    if contents.vocabulary is None:
        raise DataError(
            "This model has no vocabulary to look for neighbours in. Give a text: --corpus TEXT."
        )
    return [word for word in contents.vocabulary.words if word not in SPECIAL]


def softmax_vectors(contents: ModelContents) -> StaticVectors | None:
    """The rows of the softmax: what a word is predicted by; None where there is no softmax."""
    if contents.softmax is None or contents.vocabulary is None:
        return None
    keep = [i for i, word in enumerate(contents.vocabulary.words) if word not in SPECIAL]
    matrix = contents.softmax.weight[torch.tensor(keep)].float().numpy()
    return StaticVectors([contents.vocabulary.words[i] for i in keep], matrix)


def identify(embedder: Embedder, layers: Layer) -> dict[str, Any]:
    """What vectors are of: the weights, the layers and the tokenizer."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(embedder.bilm.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return {"weights": digest.hexdigest(), "layers": layers, "tokenizer": embedder.tokenizer}


def index_corpus(
    directory: str | Path,
    embedder: Embedder,
    sentences: Iterable[str],
    *,
    layers: Layer = "average",
    stop_words: Iterable[str] = (),
) -> VectorIndex:
    """Write an index of every word of some sentences."""

    def embedded() -> Iterator[tuple[list[str], Array]]:
        tokens: deque[list[str]] = deque()  # of sentences that are being embedded

        def tokenised() -> Iterator[list[str]]:
            for sentence in sentences:
                tokens.append([token.text for token in embedder.tokenize(sentence)])
                yield tokens[-1]

        with progress("Embedding", unit="words") as advance:
            for vectors in embedder.embed(tokenised(), layers=layers):
                yield tokens.popleft(), vectors
                advance(len(vectors))

    about = identify(embedder, layers)
    return write_index(directory, embedded(), about=about, stop_words=frozenset(stop_words))


def nearest_occurrences(
    index: VectorIndex, embedder: Embedder, sentence: MarkedSentence, k: int
) -> list[Hit]:
    """The k occurrences nearest to a marked word, from other sentences than its own.

    Raises:
        ConfigError: The index was made with another model or tokenizer.
    """
    layers = index.about.get("layers", "average")
    if index.about != identify(embedder, layers):
        raise ConfigError(
            "The index was made with another model or tokenizer: build it again with this one, or "
            "take that one."
        )
    vectors = embedder.embed([sentence.tokens], layers=layers)[0]
    (hits,) = index.search(vectors[sentence.place][None], k, without=sentence.tokens)
    return hits
