"""`Model`, what `relmo.load` returns: text in, vectors and probabilities out.

A sentence's vectors depend on the sentence and the weights alone. Everything goes one way:
`batches` → `run` → one result per sentence, in the order of the sentences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError, FormatError
from relmo.formats import WRITERS, ModelContents, read_model
from relmo.formats.contents import Softmax
from relmo.inference.batching import BATCH_TOKENS, Batcher, Sentence, in_order
from relmo.inference.device import check_device
from relmo.inference.layer_selection import LayerSelection, LayerSpec, select_layers
from relmo.inference.scoring import Perplexity, ScoredSentence, Scoring, summarize
from relmo.inference.token_cache import TokenCache
from relmo.model.output import BiLmState, Packed
from relmo.text.batch import Batch
from relmo.text.tokenize import build_tokenizer

Pool = Literal["mean", "max", "first-last"]

POOL_BYTES = 128 << 20  # of vectors that wait for their turn when a stream is embedded
CACHE_BYTES = 64 << 20  # of token vectors that are remembered


def load(
    source: str | Path | None = None,
    *,
    options: str | Path | None = None,
    weights: str | Path | None = None,
    device: str = "cpu",
    precision: str = "float32",
    tokenizer: str | None = None,
) -> Model:
    """Load a model of any known format.

    Args:
        source: a directory or zip archive, or the name of a bundled or published model.
        options: options.json of a bilm-tf or AllenNLP pair, instead of `source`.
        weights: the HDF5 file that belongs to it.
        device: where to compute, as PyTorch names it.
        precision: "float32", or "int8": faster, less exact (docs/how-to/speed.md).
        tokenizer: what strings go through; the model's own when None.

    Example:
        >>> import relmo
        >>> model = relmo.load("en")
        >>> model.embed("The cat sat .").shape
        (4, 512)
    """
    check_device(device)  # before a large file is read
    check_precision(precision, device)
    contents = read_model(source, options=options, weights=weights)
    return Model(contents, device=device, precision=precision, tokenizer=tokenizer)


def check_precision(precision: str, device: str) -> None:
    """Raise `ConfigError` for a precision that this device cannot compute in."""
    if precision not in ("float32", "int8") or (precision == "int8" and device != "cpu"):
        raise ConfigError(
            f"precision is {precision!r} on {device}; choose float32, or int8 on a CPU.",
            settings=["precision"],
        )


class Model:
    """A biLM with its tokenizer and, where it has one, its softmax.

    Attributes:
        bilm: the network, a PyTorch module to train on top of or to fine-tune.
        softmax: the output layer, where the model has one: then `score` works.
        vocabulary: the words of the softmax.
        config: the sizes of the network.
        tokenizer: the name of what strings go through.
        precision: "float32" or "int8".

    Example:
        >>> import relmo
        >>> model = relmo.load("en")
        >>> [v.shape for v in model.embed(["A cat .", ["already", "split"]], layers="all")]
        [(3, 3, 512), (3, 2, 512)]
    """

    def __init__(
        self,
        contents: ModelContents,
        *,
        device: str = "cpu",
        precision: str = "float32",
        tokenizer: str | None = None,
    ) -> None:
        check_device(device)
        check_precision(precision, device)
        self.tokenizer = tokenizer or contents.config.tokenizer
        self.tokenize = build_tokenizer(self.tokenizer)
        self.config = contents.config
        self.precision = precision
        self.bilm = contents.build_bilm().to(device)
        if precision == "int8":
            self.bilm.quantize()
        # Their storage is the network's now; what is written later is read from there.
        self._contents = replace(contents, tensors={})
        self.vocabulary = contents.vocabulary
        self._batcher = Batcher(self.tokenize, contents.build_scheme())
        capacity = max(1024, CACHE_BYTES // (4 * contents.config.lstm.projection_dim))
        self._cache = TokenCache(capacity)
        self._fingerprint: tuple[object, str] = (None, "")

    @property
    def softmax(self) -> Softmax | None:
        """The output layer, where the model has one."""
        return self._contents.softmax

    @property
    def fingerprint(self) -> str:
        """A hash of the network's weights: the same for the same vectors, on every machine."""
        weights = _version(self.bilm.parameters())
        if self._fingerprint[0] != weights:
            digest = hashlib.blake2b(digest_size=16)
            for name, tensor in sorted(self.bilm.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._fingerprint = weights, digest.hexdigest()
        return self._fingerprint[1]

    # ---- the one way into the network ---------------------------------------------------------

    def batch(self, sentences: Iterable[Sentence]) -> Batch:
        """Build one batch of all sentences, in order: `model.run(model.batch(sentences))`."""
        return self._batcher.batch(sentences)

    def batches(
        self, sentences: Iterable[Sentence], *, pool_tokens: int = 8 * BATCH_TOKENS
    ) -> Iterator[Batch]:
        """Build batches of sentences of like lengths; `Batch.numbers` tells which they are.

        Args:
            sentences: a stream of strings, lists of tokens, or arrays of character ids
                (tokens, C).
            pool_tokens: how many tokens of the stream are looked at together.
        """
        return self._batcher.batches(sentences, pool_tokens)

    def run(
        self, batch: Batch, *, mix: Tensor | None = None, state: BiLmState | None = None
    ) -> Packed:
        """Run the biLM on a batch.

        It is differentiable where gradients are enabled and the network is not frozen; otherwise
        the token cache serves known tokens and both directions run at the same time.

        Args:
            batch: as `batch` or `batches` build it.
            mix: (K, L+1) weighted sums of the layers to keep; every layer when None.
            state: where the LSTMs start from; zeros when None.
        """
        learns = self.bilm.learns
        with torch.set_grad_enabled(learns), self.bilm.own_precision():
            if learns:
                x: Tensor = self.bilm.encoder(batch.ids)
            else:
                device = next(self.bilm.parameters()).device.type
                identity = (
                    _version(self.bilm.encoder.parameters()),
                    torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
                )
                x = self._cache.vectors(batch.ids, self.bilm.encoder, identity)
            index = torch.from_numpy(batch.index).to(x.device)
            layers, end = self.bilm.contextualize(x, index, batch.packing, state, mix)
        return Packed(layers, batch.packing.lengths, end)

    # ---- vectors --------------------------------------------------------------------------------

    @overload  # a string is itself a sequence of strings, but here it is one sentence
    def embed(self, sentences: str, *, layers: LayerSpec = ...) -> Array: ...  # type: ignore[overload-overlap]
    @overload
    def embed(self, sentences: Sequence[Sentence], *, layers: LayerSpec = ...) -> list[Array]: ...
    @overload
    def embed(
        self, sentences: Iterator[Sentence], *, layers: LayerSpec = ...
    ) -> Iterator[Array]: ...

    def embed(
        self, sentences: str | Iterable[Sentence], *, layers: LayerSpec = "average"
    ) -> Array | list[Array] | Iterator[Array]:
        """Embed every token of every sentence.

        Args:
            sentences: a string is one sentence and gives one array; a list of strings or of token
                lists gives a list of arrays; a generator gives a generator, read as it is used.
            layers: "average" (of all layers), "lstm" (the mean of layers 1 to L), "top", a number
                or a ScalarMix give (tokens, 2P) per sentence; "all" and a list of numbers give
                (layers, tokens, 2P). Layer 0 is the token encoder's.
        """
        selection = select_layers(layers, self.config.n_outputs)
        if isinstance(sentences, str):
            return next(self._embed([sentences], selection))
        if not isinstance(sentences, Iterable):
            raise DataError(
                f"Expected a string or sentences, found {sentences!r:.40}. Give text, or a list of "
                "strings or token lists."
            )
        stream = self._embed(sentences, selection)
        return stream if isinstance(sentences, Iterator) else list(stream)

    def embed_sentences(
        self, sentences: Iterable[Sentence], *, pool: Pool = "mean", layers: LayerSpec = "average"
    ) -> Array:
        """Embed every sentence: one vector each, (N, 2P); (N, layers, 2P) for several layers.

        Args:
            sentences: as for `embed`.
            pool: "mean" or "max" over the tokens, or "first-last": what the forward direction knows
                at the last token beside what the backward direction knows at the first.
            layers: as for `embed`. A sentence without tokens gets zeros.
        """
        if pool not in POOLS:
            raise ConfigError(f"pool is {pool!r}; choose from {', '.join(POOLS)}.")
        selection = select_layers(layers, self.config.n_outputs)
        dim = self.config.output_dim
        empty = np.zeros((dim,) if selection.single else (selection.n_layers, dim), np.float32)
        stream = self._embed([sentences] if isinstance(sentences, str) else sentences, selection)
        pooled = [POOLS[pool](vectors) if vectors.shape[-2] else empty for vectors in stream]
        return np.stack(pooled) if pooled else np.empty((0, *empty.shape), np.float32)

    @torch.no_grad()
    def encode(self, words: Sequence[str]) -> Array:
        """Return (n, P) of words by themselves: the token encoder's vectors, without context."""
        vectors: Array = self.bilm.encoder(self._batcher.scheme.encode(words)).cpu().numpy()
        return vectors

    @contextmanager
    def stateful(self) -> Iterator[StatefulStream]:
        """Embed as AllenNLP and bilm-tf did: the LSTMs keep their state from call to call."""
        yield StatefulStream(self)

    def pool_tokens(self, layers: LayerSpec) -> int:
        """Return how many tokens of a stream are looked at together.

        A few batches, so that like lengths meet; no more, as their vectors wait for each other.
        """
        return self._pool_tokens(select_layers(layers, self.config.n_outputs))

    def _pool_tokens(self, selection: LayerSelection) -> int:
        token_bytes = 4 * self.config.output_dim * selection.n_layers
        return min(max(POOL_BYTES // token_bytes, 2 * BATCH_TOKENS), 8 * BATCH_TOKENS)

    def _embed(self, sentences: Iterable[Sentence], selection: LayerSelection) -> Iterator[Array]:
        @torch.inference_mode()
        def run(batch: Batch) -> list[Array]:
            packed = self.run(batch, mix=selection.matrix)
            packed = replace(packed, layers=packed.layers.cpu())
            return [selection.finish(vectors) for vectors in packed.sentences()]

        batches = self.batches(sentences, pool_tokens=self._pool_tokens(selection))
        return in_order(batches, run)

    # ---- probabilities --------------------------------------------------------------------------

    def score(
        self, sentences: Iterable[Sentence], *, fit: bool = False
    ) -> Iterator[ScoredSentence]:
        """Score sentences in order: the log-probability of each token, in both directions.

        Args:
            sentences: strings or lists of tokens, as a stream.
            fit: also compare p(token | both sides) with p(token); takes half as long again.

        Raises:
            FormatError: The model has no softmax.

        Example:
            >>> import relmo
            >>> (scored,) = relmo.load("en").score(["The cat sat ."])
            >>> scored.tokens
            ('The', 'cat', 'sat', '.')
        """
        if isinstance(sentences, str):
            raise DataError("Expected sentences, found one string. Put it into a list.")
        scoring = self.scoring()
        return in_order(self.batches(sentences), lambda batch: scoring.score(batch, fit=fit))

    def perplexity(self, sentences: Iterable[Sentence]) -> Perplexity:
        """Measure the perplexity of sentences; those without a token are left out."""
        return summarize(self.score(sentences))

    def scoring(self) -> Scoring:
        """Return what turns batches into probabilities, or raise where there is no softmax."""
        if self.softmax is None or self.vocabulary is None:
            missing = "softmax" if self.softmax is None else "vocabulary"
            raise FormatError(
                f"This model ({self._contents.origin}) has no {missing}, and without one it cannot "
                "tell how probable a word is; published files do not hold it. Fine-tune it on text "
                "of your own (pre-training with this model as its start) and take the result."
            )
        return Scoring(self.run, self.config.n_outputs, self.softmax, self.vocabulary)

    # ---- files ----------------------------------------------------------------------------------

    def save(self, directory: str | Path, *, to: str = "relmo") -> None:
        """Write the model with its present weights, as relmo's directory or "bilm-tf"."""
        if to not in WRITERS:
            raise ConfigError(f"Cannot write {to!r}; choose from {', '.join(WRITERS)}.")
        WRITERS[to](self.contents(), Path(directory))

    def contents(self) -> ModelContents:
        """Return the model as values, with its present weights, not copied on a CPU."""
        tensors = {name: t.detach().cpu() for name, t in self.bilm.state_dict().items()}
        config = self.config.model_copy(update={"tokenizer": self.tokenizer})
        return replace(self._contents, config=config, tensors=tensors)


class StatefulStream:
    """Calls that follow one another: sentence i starts in the state that sentence i last ended in.

    So the same sentence gets other vectors each time. That is how the older programs behaved, and
    how their published outputs come out again; use `Model.embed` unless you need that.

    Attributes:
        state: what is remembered, None before the first call.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.state: BiLmState | None = None

    @torch.no_grad()
    def embed(self, sentences: Iterable[Sentence], *, layers: LayerSpec = "average") -> list[Array]:
        """Embed every token of one batch; a sentence without tokens leaves its state alone."""
        selection = select_layers(layers, self._model.config.n_outputs)
        batch = self._model.batch(sentences)
        n = len(batch.numbers)
        before = self._widened(n)
        packed = self._model.run(batch, mix=selection.matrix, state=before.select(np.arange(n)))
        full = np.flatnonzero(batch.packing.lengths > 2)
        if len(full):
            before.h[:, :, full] = packed.state.h[:, :, full]
            before.c[:, :, full] = packed.state.c[:, :, full]
            self.state = before
        packed = replace(packed, layers=packed.layers.cpu())
        return [selection.finish(vectors) for vectors in packed.sentences()]

    def _widened(self, n_sentences: int) -> BiLmState:
        """Copy the state with room for so many sentences; new ones start from zeros."""
        bilm = self._model.bilm
        like = next(bilm.parameters())[:0].detach()
        old = self.state or bilm.initial_state(0, like)
        new = bilm.initial_state(max(0, n_sentences - old.h.shape[2]), like)
        return BiLmState(torch.cat([old.h, new.h], dim=2), torch.cat([old.c, new.c], dim=2))


def _version(parameters: Iterable[Tensor]) -> tuple[tuple[int, int], ...]:
    """Identify the present values of parameters: in-place changes raise PyTorch's counter."""
    return tuple((p.data_ptr(), p._version) for p in parameters)


def _first_last(vectors: Array) -> Array:
    dim = vectors.shape[-1] // 2
    return np.concatenate([vectors[..., -1, :dim], vectors[..., 0, dim:]], axis=-1)


POOLS = {
    "mean": lambda vectors: vectors.mean(axis=-2),
    "max": lambda vectors: vectors.max(axis=-2),
    "first-last": _first_last,
}
