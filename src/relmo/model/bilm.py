"""ELMo's network, bottom up: characters → token vectors → two LSTM stacks → layers.

Letters in shapes: U distinct tokens, N tokens of a batch (flat, sentence after sentence), B
sentences, T tokens of the longest, C characters per token, F filters, P projection, H cell, L
layers.
Nothing here keeps state between calls: what an LSTM remembers goes in and comes out as a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from relmo.arrays import IntArray
from relmo.config import EncoderConfig, LstmConfig, ModelConfig
from relmo.model.bidirectional import run_layer
from relmo.model.convolutions import max_pooled
from relmo.model.int8 import Int8Matrix
from relmo.model.lstm import ProjectedLstm
from relmo.model.output import BiLmOutput, BiLmState, Packed
from relmo.model.threads import run_in_two_threads
from relmo.text.batch import Batch, Packing
from relmo.text.characters import TokenIds

# What is alive at once: enough for good matrix products, and bounded whatever comes in.
MAX_TOKENS = 1024  # in the token encoder
WINDOW_TOKENS = 1024  # in each direction's LSTMs
BOTH = slice(0, 2)  # directions: 0 forward, 1 backward


class Highway(nn.Module):
    """g = σ(x W_g + b_g); y = g·relu(x W_t + b_t) + (1−g)·x."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)
        for linear in (self.transform, self.gate):
            nn.init.normal_(linear.weight, std=dim**-0.5)
        nn.init.zeros_(self.transform.bias)
        nn.init.constant_(self.gate.bias, -2.0)  # begin by carrying x through
        self.int8: Int8Matrix | None = None

    def quantize(self) -> None:
        """Multiply in int8 from now on, with the weights as they are now."""
        self.int8 = Int8Matrix(torch.cat([self.transform.weight, self.gate.weight]))

    def forward(self, x: Tensor) -> Tensor:
        """Features (U, F) to features (U, F)."""
        if self.int8 is not None and not x.requires_grad:
            biases = torch.cat([self.transform.bias, self.gate.bias])
            transform, gate = self.int8.apply(x).add_(biases).chunk(2, dim=1)
        else:
            transform, gate = self.transform(x), self.gate(x)
        # Under autocast the products are of another precision than x.
        return torch.lerp(x, transform.relu().to(x.dtype), gate.sigmoid().to(x.dtype))


class TokenEncoder(nn.Module):
    """A token's vector from its characters (convolutions, highways) and, in some, its word."""

    def __init__(self, config: EncoderConfig, output_dim: int) -> None:
        super().__init__()
        self.activation = getattr(torch, config.activation)
        self.characters: nn.Embedding | None = None
        self.words: nn.Embedding | None = None
        if config.n_characters:
            self.characters = nn.Embedding(config.n_characters, config.character_dim)
            nn.init.uniform_(self.characters.weight, -1, 1)
            if config.scheme == "bytes":
                with torch.no_grad():
                    self.characters.weight[0] = 0.0  # id 0: no token here
        if config.n_words:
            self.words = nn.Embedding(config.n_words, config.word_dim)
        self.convolutions = nn.ModuleList()
        for width, n in config.filters:
            convolution = nn.Conv1d(config.character_dim, n, width)
            weight, bias = convolution.parameters()
            nn.init.uniform_(weight, -0.05, 0.05)
            nn.init.zeros_(bias)
            self.convolutions.append(convolution)
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.projection = None
        if config.projection:
            self.projection = nn.Linear(config.feature_dim, output_dim)
            nn.init.normal_(self.projection.weight, std=config.feature_dim**-0.5)
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids: TokenIds) -> Tensor:
        """Vectors (U, P) for U tokens: some at a time, those of like lengths together."""
        used = ids.n_used()
        # PyTorch's order of equals: another one would change the last bits of gradients' sums, and
        # runs of earlier versions would not resume bit for bit.
        order = torch.from_numpy(used).argsort().numpy()
        if torch.is_grad_enabled():  # in one piece: each has gradients of all the weights
            return self._restore(self._encode_all(ids, used, order), order)
        halves = order[0::2], order[1::2]
        parts = run_in_two_threads(*(partial(self._encode_all, ids, used, half) for half in halves))
        return self._restore(torch.cat(parts), np.concatenate(halves))

    def _encode_all(self, ids: TokenIds, used: IntArray, rows: IntArray) -> Tensor:
        blocks = [rows[i : i + MAX_TOKENS] for i in range(0, max(1, len(rows)), MAX_TOKENS)]
        return torch.cat([self._encode(ids.select(r), used[r].tolist()) for r in blocks])

    def _encode(self, ids: TokenIds, used: list[int]) -> Tensor:
        parts: list[Tensor] = []
        if self.words is not None:
            assert ids.words is not None
            words = torch.from_numpy(ids.words).to(self.words.weight.device)
            parts.append(self.words(words))  # (U, W)
        if ids.characters is not None:
            assert self.characters is not None
            characters = torch.from_numpy(ids.characters).to(self.characters.weight.device)
            filters, biases = zip(*(c.parameters() for c in self.convolutions), strict=True)
            best = max_pooled(characters, used, self.characters.weight, filters)
            x = self.activation(best + torch.cat(biases))  # (U, F)
            for highway in self.highways:
                x = highway(x)
            parts.append(x)
        features = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return features if self.projection is None else self.projection(features)  # (U, P)

    @staticmethod
    def _restore(vectors: Tensor, order: IntArray) -> Tensor:
        """Put rows that stand in `order` back to where they were."""
        places = torch.from_numpy(np.argsort(order, kind="stable")).to(vectors.device)
        return vectors.index_select(0, places)


class LstmStack(nn.ModuleList):
    """The L layers of one direction."""

    def __init__(self, config: LstmConfig) -> None:
        dim = config.projection_dim
        super().__init__(
            ProjectedLstm(
                dim,
                config.cell_dim,
                dim,
                config.cell_clip,
                config.projection_clip,
                projection=config.projection,
            )
            for _ in range(config.n_layers)
        )

    def layers(self) -> list[ProjectedLstm]:
        """From the first to the last."""
        return cast(list[ProjectedLstm], list(self))


class BiLm(nn.Module):
    """The bidirectional language model: one token encoder, one stack of LSTMs per direction.

    The two directions never see each other: layer 2 forward reads layer 1 forward only.

    Example:
        >>> import relmo
        >>> model = relmo.load("en")
        >>> output = model.bilm(model.batch(["The cat sat .", "Yes"]))
        >>> output.layers.shape  # layers, sentences, tokens and both boundaries, dim
        torch.Size([3, 2, 6, 512])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TokenEncoder(config.encoder, config.lstm.projection_dim)
        self.forward_stack = LstmStack(config.lstm)
        self.backward_stack = LstmStack(config.lstm)

    def forward(self, batch: Batch, state: BiLmState | None = None) -> BiLmOutput:
        """All layers of a batch of sentences, boundaries included, padded for a network on top."""
        with torch.set_grad_enabled(self.learns), self.own_precision():
            x = self.encoder(batch.ids)  # (U, P)
            index = torch.from_numpy(batch.index).to(x.device)
            layers, state = self.contextualize(x, index, batch.packing, state)  # (L+1, N, 2P)
            return Packed(layers, batch.packing.lengths, state).padded()

    def own_precision(self) -> AbstractContextManager[object]:
        """Leave autocast to CUDA: on a CPU the fused passes compute in the weights' precision."""
        on_cpu = next(self.parameters()).device.type == "cpu"
        if on_cpu and torch.is_autocast_enabled("cpu"):
            return torch.autocast("cpu", enabled=False)
        return nullcontext()

    @property
    def learns(self) -> bool:
        """Whether gradients are wanted: not where it is frozen, which is quicker."""
        return torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())

    def quantize(self) -> BiLm:
        """Multiply in int8 from now on, for embedding only: the weights are frozen."""
        self.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, Highway | ProjectedLstm):
                module.quantize()
        return self

    def contextualize(
        self,
        x: Tensor,
        index: Tensor,
        packing: Packing,
        state: BiLmState | None = None,
        mix: Tensor | None = None,
    ) -> tuple[Tensor, BiLmState]:
        """Run both directions over sentences, window by window; only the result grows with them.

        Args:
            x: (U, P) vectors of the distinct tokens.
            index: (N,) which of them each token is.
            packing: the order in which tokens are read.
            state: where to start from; zeros when None.
            mix: (K, L+1) what to keep: K weighted sums of the layers; every layer when None.

        Returns:
            (K, N, 2P), and the state in which each sentence ended.
        """
        n_kept = self.config.n_outputs if mix is None else len(mix)
        mix = None if mix is None else mix.to(x)
        both = np.stack([packing.forward, packing.backward])  # (2, N)
        order = torch.from_numpy(both).to(x.device)
        result = x.new_empty(n_kept, len(index), self.config.output_dim)
        dim = self.config.lstm.projection_dim
        halves = result[..., :dim], result[..., dim:]
        state = (state or self.initial_state(len(packing.lengths), x)).select(packing.order)

        def run(directions: slice) -> BiLmState:
            end = BiLmState(state.h[directions], state.c[directions])
            for places, layers, after in self.run_windows(
                x, index[order[directions]], packing, end, directions
            ):
                end = after
                kept = layers if mix is None else torch.tensordot(mix, torch.stack(layers), dims=1)
                for k, layer in enumerate(kept):
                    for half, tokens, vectors in zip(
                        halves[directions], order[directions], layer, strict=True
                    ):
                        half[k].index_copy_(0, tokens[places], vectors)
            return end

        if torch.is_grad_enabled():
            ends = [run(BOTH)]
        else:  # no gradients: the directions need not meet after each layer
            ends = [*run_in_two_threads(partial(run, slice(0, 1)), partial(run, slice(1, 2)))]
        h, c = torch.cat([end.h for end in ends]), torch.cat([end.c for end in ends])
        return result, BiLmState(h, c).select(np.argsort(packing.order))

    def run_windows(
        self,
        x: Tensor,
        index: Tensor,
        packing: Packing,
        state: BiLmState,
        directions: slice = BOTH,
        dropout: float = 0.0,
    ) -> Iterator[tuple[slice, list[Tensor], BiLmState]]:
        """Run the LSTMs over packed tokens, window by window, in D directions: one or both.

        Args:
            x: (U, P) vectors of the distinct tokens.
            index: (D, N) which of them stands at each packed place.
            packing: how many rows read a token at each step.
            state: where to start from, of these directions, rows in packed order.
            directions: which directions these are.
            dropout: share of each layer's input that is dropped; the residual carries the rest.

        Yields:
            Packed places, the token vectors and each layer's output (D, n, P), the state after it.
        """
        stacks = (self.forward_stack.layers(), self.backward_stack.layers())[directions]
        for steps, places in packing.windows(WINDOW_TOKENS):
            sizes, running = packing.sizes[steps], packing.sizes[steps.start]
            vectors = x.index_select(0, index[:, places].flatten()).view(len(index), -1, x.shape[1])
            layers, h, c = [vectors], [], []
            for depth, level in enumerate(zip(*stacks, strict=True)):
                vectors = functional.dropout(vectors, dropout) if dropout else vectors
                start = state.h[:, depth, :running], state.c[:, depth, :running]
                y, last_h, last_c = run_layer(level, vectors, sizes, *start)
                residual = self.config.lstm.residual and depth > 0
                vectors = vectors + y if residual else y  # the state is y before the residual
                layers.append(vectors)
                h.append(torch.cat([last_h, state.h[:, depth, running:]], dim=1))
                c.append(torch.cat([last_c, state.c[:, depth, running:]], dim=1))
            state = BiLmState(torch.stack(h, dim=1), torch.stack(c, dim=1))
            yield places, layers, state

    def initial_state(self, n_sentences: int, like: Tensor) -> BiLmState:
        """Nothing read yet: zeros, of `like`'s kind."""
        lstm = self.config.lstm
        return BiLmState(
            like.new_zeros(2, lstm.n_layers, n_sentences, lstm.projection_dim),
            like.new_zeros(2, lstm.n_layers, n_sentences, lstm.cell_dim),
        )
