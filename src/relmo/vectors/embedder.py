"""Text in, vectors out: a sentence's vectors depend on the sentence and the weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from relmo.arrays import Array
from relmo.errors import ConfigError, DataError
from relmo.formats import WRITERS, ModelContents, read_model
from relmo.model.bilm import BiLmState
from relmo.text.batch import (
    Batch,
    Packing,
    build_batch,
    cut_into_pools,
    distinct_tokens,
    plan_batches,
)
from relmo.text.tokenize import build_tokenizer
from relmo.vectors.choice import Choice, Layers, choose
from relmo.vectors.token_cache import TokenCache

Sentence = str | Sequence[str]  # text to be tokenised, or tokens
Pool = Literal["mean", "max", "first-last"]

BATCH_TOKENS = 8192  # read side by side
POOL_BYTES = 128 << 20  # of results that wait for their turn when a stream is embedded
CACHE_BYTES = 64 << 20  # of token vectors that are remembered


def load(
    source: str | Path | None = None,
    *,
    options: str | Path | None = None,
    weights: str | Path | None = None,
    device: str = "cpu",
    precision: str = "float32",
    tokenizer: str | None = None,
) -> Embedder:
    """Load a model of any known format, ready to embed.

    Args:
        source: a directory or zip archive, or the name of a published model.
        options: options.json of a bilm-tf or AllenNLP pair, instead of `source`.
        weights: the HDF5 file that goes with it.
        device: where to compute, as PyTorch names it.
        precision: "float32", or "int8": quicker, less exact (docs/how-to/speed.md).
        tokenizer: what strings go through; the model's own when None.
    """
    check_precision(precision, device)  # before a large file is read
    contents = read_model(source, options=options, weights=weights)
    return Embedder(contents, device=device, precision=precision, tokenizer=tokenizer)


def check_precision(precision: str, device: str) -> None:
    """Raise `ConfigError` for what cannot be computed with."""
    if precision not in ("float32", "int8") or (precision == "int8" and device != "cpu"):
        raise ConfigError(
            f"precision is {precision!r} on {device}; choose float32, or int8 on a CPU."
        )


class Embedder:
    """A model that turns sentences into vectors.

    Attributes:
        bilm: the network, a PyTorch module to train on top of or to fine-tune.
        config: its sizes.
        tokenizer: the name of what strings go through.
    """

    def __init__(
        self,
        contents: ModelContents,
        *,
        device: str = "cpu",
        precision: str = "float32",
        tokenizer: str | None = None,
    ) -> None:
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
        self._scheme = contents.build_scheme()
        self._cache = TokenCache(
            max(1024, CACHE_BYTES // (4 * contents.config.lstm.projection_dim))
        )

    @overload  # a string is itself a sequence of strings, but here it is one sentence
    def embed(self, sentences: str, *, layers: Layers = ...) -> Array: ...  # type: ignore[overload-overlap]
    @overload
    def embed(self, sentences: Sequence[Sentence], *, layers: Layers = ...) -> list[Array]: ...
    @overload
    def embed(self, sentences: Iterator[Sentence], *, layers: Layers = ...) -> Iterator[Array]: ...

    def embed(
        self, sentences: str | Iterable[Sentence], *, layers: Layers = "average"
    ) -> Array | list[Array] | Iterator[Array]:
        """Vectors of every token.

        Args:
            sentences: a string is one sentence and gives one array; a list of strings or of token
                lists gives a list of arrays; a generator gives a generator, read as it is used.
            layers: "average", "top", a number or a ScalarMix give (tokens, 2P) a sentence; "all"
                and a list of numbers give (layers, tokens, 2P). Layer 0 is the token encoder's.
        """
        choose(layers, self.config.n_outputs)  # a wrong one is told now, not when vectors are used
        if isinstance(sentences, str):
            return next(self._stream([sentences], layers))
        stream = self._stream(sentences, layers)
        return stream if isinstance(sentences, Iterator) else list(stream)

    def embed_sentences(
        self, sentences: Iterable[Sentence], *, pool: Pool = "mean", layers: Layers = "average"
    ) -> Array:
        """One vector a sentence, (N, 2P); (N, layers, 2P) for several layers.

        Args:
            sentences: as for `embed`.
            pool: "mean" or "max" over the tokens, or "first-last": what the forward direction knows
                at the last token beside what the backward direction knows at the first.
            layers: as for `embed`. A sentence without tokens gets zeros.
        """
        if pool not in POOLS:
            raise ConfigError(f"pool is {pool!r}; choose from {', '.join(POOLS)}.")
        stream = self._stream([sentences] if isinstance(sentences, str) else sentences, layers)
        no_token = self._no_tokens(choose(layers, self.config.n_outputs)).sum(
            axis=-2
        )  # zeros, (2P,) or (layers, 2P)
        pooled = [POOLS[pool](vectors) if vectors.shape[-2] else no_token for vectors in stream]
        return np.stack(pooled) if pooled else np.empty((0, *no_token.shape), np.float32)

    @torch.inference_mode()
    def encode(self, words: Sequence[str]) -> Array:
        """(n, P) of words by themselves: what the token encoder gives them in every context."""
        vectors: Array = self._encode(list(words)).cpu().numpy()
        return vectors

    @contextmanager
    def stateful(self) -> Iterator[StatefulStream]:
        """Embed as AllenNLP and bilm-tf did: what the LSTMs remember goes on from call to call."""
        yield StatefulStream(self)

    def batch(self, sentences: Iterable[Sentence]) -> Batch:
        """Sentences as `bilm` reads them: `model.bilm(model.batch(sentences))`."""
        return build_batch([self._tokens(s) for s in sentences], self._scheme)

    def save(self, directory: str | Path, *, to: str = "relmo") -> None:
        """Write the model with the weights that it has now, as relmo's directory or "bilm-tf"."""
        if to not in WRITERS:
            raise ConfigError(f"Cannot write {to!r}; choose from {', '.join(WRITERS)}.")
        WRITERS[to](self.contents(), Path(directory))

    def contents(self) -> ModelContents:
        """The model as values, with the weights that it has now, not copied on a CPU."""
        tensors = {name: t.detach().cpu() for name, t in self.bilm.state_dict().items()}
        config = self.config.model_copy(update={"tokenizer": self.tokenizer})
        return replace(self._contents, config=config, tensors=tensors)

    def pool_tokens(self, layers: Layers) -> int:
        """How many tokens a stream is cut into at a time.

        A few batches, so that like lengths meet; no more, as their vectors wait for each other.
        """
        token_bytes = 4 * self.config.output_dim * choose(layers, self.config.n_outputs).n_layers
        return min(max(POOL_BYTES // token_bytes, 2 * BATCH_TOKENS), 8 * BATCH_TOKENS)

    @property
    def _device(self) -> torch.device:
        return next(self.bilm.parameters()).device

    def _tokens(self, sentence: Sentence) -> Sequence[str]:
        if isinstance(sentence, str):
            return [token.text for token in self.tokenize(sentence)]
        if isinstance(sentence, Sequence) and all(isinstance(token, str) for token in sentence):
            return sentence
        raise DataError(
            f"A sentence is a string or a list of strings, not {sentence!r:.80}. "
            "Decode bytes first; put a lone list of tokens into a list."
        )

    def _no_tokens(self, choice: Choice) -> Array:
        shape = (0, self.config.output_dim)
        return np.zeros(shape if choice.one else (choice.n_layers, *shape), np.float32)

    def _stream(self, sentences: Iterable[Sentence], layers: Layers) -> Iterator[Array]:
        """Arrays in the order of the sentences, of which only a pool is looked at at a time."""
        choice = choose(layers, self.config.n_outputs)
        tokenised = map(self._tokens, sentences)
        for pool in cut_into_pools(tokenised, len, self.pool_tokens(layers)):
            yield from self._embed_pool(pool, choice)

    def _embed_pool(self, pool: list[Sequence[str]], choice: Choice) -> list[Array]:
        results = [self._no_tokens(choice)] * len(pool)
        full = [i for i, sentence in enumerate(pool) if sentence]
        for batch in plan_batches([len(pool[i]) + 2 for i in full], BATCH_TOKENS):
            numbers = [full[i] for i in batch]
            vectors, _ = self._embed_batch([pool[i] for i in numbers], choice, None)
            for i, array in zip(numbers, vectors, strict=True):
                results[i] = array
        return results

    @torch.inference_mode()
    def _embed_batch(
        self, sentences: Sequence[Sequence[str]], choice: Choice, state: BiLmState | None
    ) -> tuple[list[Array], BiLmState]:
        tokens, index = distinct_tokens(sentences, self._scheme)
        packing = Packing([len(s) + 2 for s in sentences])
        vectors = self._cache.vectors(tokens, self._encode, self._weights_identity())
        layers, state = self.bilm.contextualize(
            vectors, torch.from_numpy(index).to(vectors.device), packing, state, choice.matrix
        )  # (K, N, 2P)
        by_sentence = layers.cpu().split(packing.lengths.tolist(), dim=1)
        return [choice.finish(v[:, 1:-1]) for v in by_sentence], state

    def _encode(self, tokens: list[str]) -> Tensor:
        vectors: Tensor = self.bilm.encoder(self._scheme.encode(tokens))
        return vectors

    def _weights_identity(self) -> tuple[tuple[int, int], ...]:
        return tuple((p.data_ptr(), p._version) for p in self.bilm.encoder.parameters())


class StatefulStream:
    """Calls that follow one another: sentence i goes on from where sentence i last ended.

    So the same sentence gets other vectors each time. That is how the older programs behaved, and
    how their published outputs come out again; use `Embedder.embed` unless you need that.

    Attributes:
        state: what is remembered, None before the first call.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.state: BiLmState | None = None

    def embed(self, sentences: Sequence[Sentence], *, layers: Layers = "average") -> list[Array]:
        """Vectors of every token of one batch; a sentence without tokens leaves its state alone."""
        embedder = self._embedder
        choice = choose(layers, embedder.config.n_outputs)
        batch = [embedder._tokens(sentence) for sentence in sentences]
        results = [embedder._no_tokens(choice)] * len(batch)
        full = [i for i, tokens in enumerate(batch) if tokens]
        if not full:
            return results
        state = self._widened(len(batch))
        vectors, ended = embedder._embed_batch(
            [batch[i] for i in full], choice, state.select(np.array(full))
        )
        state.h[:, :, full] = ended.h
        state.c[:, :, full] = ended.c
        self.state = state
        for i, array in zip(full, vectors, strict=True):
            results[i] = array
        return results

    def _widened(self, n_sentences: int) -> BiLmState:
        """A copy of the state with room for so many sentences; new ones start from zeros."""
        like = torch.empty(0, device=self._embedder._device)
        old = self.state or self._embedder.bilm.initial_state(0, like)
        n_new = max(0, n_sentences - old.h.shape[2])
        new = self._embedder.bilm.initial_state(n_new, like)
        return BiLmState(torch.cat([old.h, new.h], dim=2), torch.cat([old.c, new.c], dim=2))


def _first_last(vectors: Array) -> Array:
    dim = vectors.shape[-1] // 2
    return np.concatenate([vectors[..., -1, :dim], vectors[..., 0, dim:]], axis=-1)


POOLS = {
    "mean": lambda vectors: vectors.mean(axis=-2),
    "max": lambda vectors: vectors.max(axis=-2),
    "first-last": _first_last,
}
