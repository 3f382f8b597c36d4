"""An index of every word of a corpus, in its context: build it, and search it for a marked word."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from relmo.arrays import Array
from relmo.errors import ConfigError
from relmo.inference.layer_selection import select_one_layer
from relmo.inference.model import Model
from relmo.inference.model_source import ModelLike, open_model
from relmo.model.scalar_mix import ScalarMix
from relmo.progress import progress
from relmo.text.marks import MarkedSentence, parse_marked
from relmo.text.reading import PROSE, TextOptions, TextReader, TextSource, expand_texts
from relmo.vectors.index import Hit, VectorIndex, write_index
from relmo.vectors.vector_files import are_vectors, read_embedded

Layer: TypeAlias = Literal["average", "lstm", "top"] | int
IndexLike: TypeAlias = str | Path | VectorIndex


@dataclass(frozen=True)
class IndexOptions:
    """What an index holds.

    Attributes:
        layers: "average" (of all layers), "lstm" (the mean of layers 1 to L), "top" or a number.
        stop_words: words to leave out, in lower case: one, or several.
        approximate: add a faiss index, for approximate search in millions of words.

    Example:
        >>> import relmo
        >>> relmo.IndexOptions(layers="top", stop_words=("the", "a")).layers
        'top'
    """

    layers: Layer = "average"
    stop_words: str | tuple[str, ...] = ()
    approximate: bool = False


@dataclass(frozen=True)
class Occurrences:
    """The occurrences nearest to a marked word.

    Attributes:
        tokens: the tokens of the sentence that was searched for.
        place: the place of the marked token among them, from 0.
        hits: the occurrences, the nearest first.
    """

    tokens: tuple[str, ...]
    place: int
    hits: tuple[Hit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        hits = [hit.as_dict() for hit in self.hits]
        return {"tokens": list(self.tokens), "place": self.place, "hits": hits}


@dataclass(frozen=True)
class Recall:
    """How many of the nearest occurrences approximate search finds.

    Attributes:
        recall: the share of the k nearest that it finds.
        k: number of nearest occurrences.
        queries: number of words that were searched for.
    """

    recall: float
    k: int
    queries: int

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return asdict(self)


def build_index(
    texts: TextSource,
    output: str | Path,
    model: ModelLike = "en",
    *,
    options: IndexOptions = IndexOptions(),  # noqa: B008 - frozen
    text_options: TextOptions = PROSE,
) -> VectorIndex:
    """Build an index of a corpus: one vector per word, in context. Equal sentences are kept once.

    Args:
        texts: files, directories, patterns or "-"; or files of vectors that `relmo.embed_file`
            wrote with this model, as their extensions tell.
        output: a new directory.
        model: a name, a path or a loaded model.
        options: which layer, and which words to leave out.
        text_options: how to read the text; by default prose.

    Raises:
        ConfigError: The vectors are not those of this model.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("novel.txt").write_text("The cat sat. A dog ran.")
        >>> index = relmo.build_index("novel.txt", "novel.index")
        >>> len(index)
        8
    """
    files = expand_texts(texts)
    if are_vectors(files):
        loaded = open_model(model)
        stored = (pair for file in files for pair in read_embedded(file, loaded, options.layers))
        return _write(output, loaded, stored, options)
    reader = TextReader(files, text_options)
    return index_sentences(reader, output, open_model(model), options)


def index_sentences(
    sentences: Iterable[str],
    output: str | Path,
    model: Model,
    options: IndexOptions = IndexOptions(),  # noqa: B008 - frozen
) -> VectorIndex:
    """Build an index of every word of some sentences.

    Args:
        sentences: the sentences, as a stream.
        output: a new directory.
        model: the model.
        options: which layer, and which words to leave out.
    """
    return _write(output, model, _embed(model, sentences, options.layers), options)


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
    output: str | Path,
    model: Model,
    sentences: Iterable[tuple[list[str], Array]],
    options: IndexOptions,
) -> VectorIndex:
    if isinstance(options.layers, ScalarMix):
        raise ConfigError(
            "An index names its layer, and a ScalarMix has no name: choose average, lstm, top or "
            "a number.",
            settings=["layers"],
        )
    select_one_layer(options.layers, model.config.n_outputs)

    def told() -> Iterator[tuple[list[str], Array]]:
        with progress("Indexing", unit="words") as advance:
            for tokens, vectors in sentences:
                yield tokens, vectors
                advance(len(tokens))

    words = options.stop_words
    return write_index(
        output,
        told(),
        about=identify(model, options.layers),
        stop_words=[words] if isinstance(words, str) else words,
        approximate=options.approximate,
    )


def identify(model: Model, layers: Layer) -> dict[str, Any]:
    """Say what vectors are of: the weights, the layers and the tokenizer."""
    return {"weights": model.fingerprint, "layers": layers, "tokenizer": model.tokenizer}


def search_index(
    sentence: str,
    index: IndexLike,
    model: ModelLike = "en",
    *,
    k: int = 10,
    exact: bool = False,
) -> Occurrences:
    """Find the occurrences in an index that are nearest to a word in its sentence.

    Args:
        sentence: a sentence with one word in square brackets. The sentence itself is left out.
        index: an index, or the directory that `build_index` wrote.
        model: the model that the index was built with.
        k: number of occurrences.
        exact: search exactly, even if the index has approximate search.

    Raises:
        ConfigError: The index was built with another model or tokenizer.
        DataError: There is not exactly one token in brackets.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("novel.txt").write_text("The cat sat on the mat. A dog ran.")
        >>> index = relmo.build_index("novel.txt", "novel.index")
        >>> relmo.search_index("Her [cat] sat on a chair.", index, k=1).hits[0].word
        'cat'
    """
    opened = index if isinstance(index, VectorIndex) else VectorIndex(index)
    loaded = open_model(model, tokenizer=opened.about.get("tokenizer"))
    _check_same(opened, loaded)  # before a mark does not fit a token of another tokenizer
    marked = parse_marked(sentence, loaded.tokenize)
    hits = nearest_occurrences(opened, loaded, marked, k, exact=exact)
    return Occurrences(marked.tokens, marked.place, tuple(hits))


def search_corpus(
    sentence: str,
    corpus: TextSource,
    model: ModelLike = "en",
    *,
    k: int = 10,
    layers: Layer = "average",
    text_options: TextOptions = PROSE,
) -> Occurrences:
    """Find the occurrences in a text that are nearest to a word in its sentence.

    The text is indexed in a temporary directory. To search it again, use `build_index`.

    Args:
        sentence: a sentence with one word in square brackets. The sentence itself is left out.
        corpus: files, directories, patterns or "-".
        model: a name, a path or a loaded model.
        k: number of occurrences.
        layers: as in `IndexOptions`.
        text_options: how to read the text; by default prose.

    Raises:
        DataError: There is not exactly one token in brackets.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("novel.txt").write_text("The cat sat on the mat. A dog ran.")
        >>> relmo.search_corpus("Her [cat] sat on a chair.", "novel.txt", k=1).hits[0].word
        'cat'
    """
    loaded = open_model(model)
    parse_marked(sentence, loaded.tokenize)  # mistakes show before the text is embedded
    options = IndexOptions(layers)
    with tempfile.TemporaryDirectory(prefix="relmo-index-", ignore_cleanup_errors=True) as folder:
        where = Path(folder, "index")
        index = build_index(corpus, where, loaded, options=options, text_options=text_options)
        return search_index(sentence, index, loaded, k=k)


def nearest_occurrences(
    index: VectorIndex,
    model: Model,
    sentence: MarkedSentence,
    k: int,
    *,
    exact: bool = False,
) -> list[Hit]:
    """Find the k occurrences nearest to a marked word, from other sentences than its own.

    `exact` compares with all of them, whatever the index was built for.

    Raises:
        ConfigError: The index was built with another model or tokenizer.
    """
    _check_same(index, model)
    layers = index.about.get("layers", "average")
    vectors = model.embed([sentence.tokens], layers=layers)[0]
    query = vectors[sentence.place][None]
    (hits,) = index.search(query, k, without=sentence.tokens, exact=exact)
    return hits


def _check_same(index: VectorIndex, model: Model) -> None:
    """Raise `ConfigError` for an index that was built with another model or tokenizer."""
    found = identify(model, index.about.get("layers", "average"))
    differing = [name for name in ("weights", "tokenizer") if index.about.get(name) != found[name]]
    if differing == ["tokenizer"]:
        raise ConfigError(
            f"The index was made with the tokenizer {index.about.get('tokenizer')!r}, but "
            f"{model.tokenizer!r} was chosen: take that of the index, or build it again.",
            settings=["tokenizer"],
        )
    if index.about != found:
        raise ConfigError(
            "The index was made with the weights of another model: take that model, or build the "
            "index again with this one.",
            settings=["model"],
        )


def measure_recall(index: IndexLike, *, k: int = 10, queries: int = 200) -> Recall:
    """Measure the recall of approximate search: the share of the k nearest that it finds.

    Args:
        index: an index with approximate search, or its directory.
        k: number of nearest occurrences.
        queries: number of words of the index to search for.

    Raises:
        ConfigError: The index was not built for approximate search.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("novel.txt").write_text("The cat sat. A dog ran.")
        >>> options = relmo.IndexOptions(approximate=True)  # needs relmo[faiss]
        >>> index = relmo.build_index("novel.txt", "novel.index", options=options)
        >>> relmo.measure_recall(index, k=3, queries=5).recall  # small indexes compare all
        1.0
    """
    opened = index if isinstance(index, VectorIndex) else VectorIndex(index)
    return Recall(opened.recall(k, queries), k, queries)
