"""What is near a word: other words, or occurrences of words in the sentences of a corpus."""

from __future__ import annotations

import difflib
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError
from relmo.formats import ModelContents
from relmo.progress import progress
from relmo.text.marks import MarkedSentence
from relmo.text.sentences import read_sentences
from relmo.text.vocabulary import SPECIAL
from relmo.vectors.choice import choose
from relmo.vectors.embedder import Embedder
from relmo.vectors.index import Hit, VectorIndex, write_index
from relmo.vectors.static import StaticVectors
from relmo.vectors.vector_files import are_vectors, read_embedded

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


def near_by_kind(
    word: str, k: int, *, contents: ModelContents | None = None, static: StaticVectors | None = None
) -> dict[str, list[Neighbour]]:
    """The k words nearest to a word by each vector that there is: "token", "softmax", "static".

    With a model and static vectors also by both, "token + static": one behind the other, each of
    length 1, for the words that both know.

    Raises:
        ConfigError: There is neither a model nor a file of vectors.
        DataError: The static vectors do not know the word, or the model has no vocabulary.
    """
    if contents is None and static is None:
        raise ConfigError("Say what to compare by: -m MODEL, --static VECTORS, or both.")
    if static is not None and word not in static:
        raise DataError(_unknown_word(word, static))
    found = {}
    if contents is not None:
        embedder, softmax = Embedder(contents), softmax_vectors(contents)
        tokens = token_vectors(embedder, vocabulary_of(contents))
        found["token"] = nearest_words(tokens, word, embedder.encode([word])[0], k)
        if softmax is not None and softmax.number(word) is not None:
            found["softmax"] = nearest_words(softmax, word, softmax.vector(word), k)
    if static is not None:
        itself = static.words[static.number(word) or 0]  # perhaps in lower case
        found["static"] = nearest_words(static, itself, static.vector(word), k)
    if contents is not None and static is not None:
        common = [i for i, w in enumerate(tokens.words) if w in static]
        words = [*(tokens.words[i] for i in common), word]
        own = np.vstack([tokens.matrix[common], embedder.encode([word])])
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
    approximate: bool = False,
) -> VectorIndex:
    """Write an index of every word of some sentences.

    Args:
        directory: a new one.
        embedder: the model.
        sentences: what to take, as a stream.
        layers: one layer, or the average.
        stop_words: words to leave out, in lower case.
        approximate: make it ready for approximate search as well.
    """
    embedded = _embed(embedder, sentences, layers)
    return _write(directory, embedder, embedded, layers, stop_words, approximate)


def index_files(
    directory: str | Path,
    embedder: Embedder,
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
        embedder: the model.
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
        stored = (pair for file in files for pair in read_embedded(file, embedder, layers))
        return _write(directory, embedder, stored, layers, stop_words, approximate)
    sentences = (s for f in files for s in read_sentences(f, lines=lines, language=language))
    embedded = _embed(embedder, sentences, layers)
    return _write(directory, embedder, embedded, layers, stop_words, approximate)


def _embed(
    embedder: Embedder, sentences: Iterable[str], layers: Layer
) -> Iterator[tuple[list[str], Array]]:
    tokens: deque[list[str]] = deque()  # of sentences that are being embedded

    def tokenised() -> Iterator[list[str]]:
        for sentence in sentences:
            tokens.append([token.text for token in embedder.tokenize(sentence)])
            yield tokens[-1]

    for vectors in embedder.embed(tokenised(), layers=layers):
        yield tokens.popleft(), vectors


def _write(
    directory: str | Path,
    embedder: Embedder,
    sentences: Iterable[tuple[list[str], Array]],
    layers: Layer,
    stop_words: Iterable[str],
    approximate: bool,
) -> VectorIndex:
    if not choose(layers, embedder.config.n_outputs).one:
        raise ConfigError(
            f"The layer is {layers!r}; an index holds one vector a word: choose average, top or "
            "a number."
        )

    def told() -> Iterator[tuple[list[str], Array]]:
        with progress("Indexing", unit="words") as advance:
            for tokens, vectors in sentences:
                yield tokens, vectors
                advance(len(tokens))

    stopped, about = frozenset(stop_words), identify(embedder, layers)
    return write_index(directory, told(), about=about, stop_words=stopped, approximate=approximate)


def nearest_occurrences(
    index: VectorIndex,
    embedder: Embedder,
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
    if index.about != identify(embedder, layers):
        raise ConfigError(
            "The index was made with another model or tokenizer: build it again with this one, or "
            "take that one."
        )
    vectors = embedder.embed([sentence.tokens], layers=layers)[0]
    query = vectors[sentence.place][None]
    (hits,) = index.search(query, k, without=sentence.tokens, exact=exact)
    return hits
