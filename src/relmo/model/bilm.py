"""ELMo's network, bottom up: characters → token vectors → two LSTM stacks → layers.

Letters in shapes: U distinct tokens, N tokens of a batch (flat, sentence after sentence), B
sentences, T tokens of the longest, C characters a token, F filters, P projection, H cell, L layers.
Nothing here keeps state between calls: what an LSTM remembers goes in and comes out as a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from relmo.config import EncoderConfig, LstmConfig, ModelConfig
from relmo.model.int8 import Int8Matrix
from relmo.model.lstm import ProjectedLstm
from relmo.model.threads import run_both
from relmo.text.batch import Batch, Packing
from relmo.text.characters import TokenIds

# What is alive at once: enough for good matrix products, and bounded whatever comes in.
MAX_TOKENS = 1024  # in the token encoder
MAX_POSITIONS = 2048  # in its convolutions
WINDOW_TOKENS = 1024  # in each direction's LSTMs


@dataclass(frozen=True)
class BiLmState:
    """What the 2L LSTMs remember of B sentences; direction 0 is forward, 1 backward."""

    h: Tensor  # (2, L, B, P)
    c: Tensor  # (2, L, B, H)

    def select(self, rows: Tensor) -> BiLmState:
        """The same for some of the sentences, or for all of them in another order."""
        rows = rows.to(self.h.device)
        return BiLmState(self.h.index_select(2, rows), self.c.index_select(2, rows))


@dataclass(frozen=True)
class BiLmOutput:
    """Every layer's vectors: 0 the token encoder's, twice; j ≥ 1 LSTM j's [forward; backward]."""

    layers: Tensor  # (L+1, B, T, 2P), zero where there is no token
    mask: Tensor  # (B, T), True on real tokens
    state: BiLmState  # where each sentence ended

    def without_boundaries(self) -> BiLmOutput:
        """The sentences' own tokens only: the first and the last vector of each are left out."""
        mask = self.mask[:, 2:]
        return BiLmOutput(self.layers[:, :, 1:-1] * mask[..., None], mask, self.state)


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
        return torch.lerp(x, transform.relu(), gate.sigmoid())


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
        self.n_filters = config.n_filters
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.projection = None
        if config.projection:
            self.projection = nn.Linear(config.feature_dim, output_dim)
            nn.init.normal_(self.projection.weight, std=config.feature_dim**-0.5)
            nn.init.zeros_(self.projection.bias)
        self.widest = max((width for width, _ in config.filters), default=0)

    def forward(self, ids: TokenIds) -> Tensor:
        """Vectors (U, P) for U tokens: some at a time, those of like lengths together."""
        used = _used_characters(ids)
        order = used.argsort()
        halves = order[0::2], order[1::2]
        parts = run_both(*(partial(self._encode_all, ids, used, half) for half in halves))
        return torch.cat(parts).index_select(0, torch.cat(halves).argsort())

    def _encode_all(self, ids: TokenIds, used: Tensor, rows: Tensor) -> Tensor:
        blocks = rows.split(MAX_TOKENS)
        return torch.cat([self._encode(ids.select(r), used[r].tolist()) for r in blocks])

    def _encode(self, ids: TokenIds, used: list[int]) -> Tensor:
        parts: list[Tensor] = []
        if self.words is not None:
            parts.append(self.words(ids.words))  # (U, W)
        if ids.characters is not None:
            x = self._convolve(ids.characters, used)  # (U, F)
            for highway in self.highways:
                x = highway(x)
            parts.append(x)
        x = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        if self.projection is not None:
            x = self.projection(x)
        return x  # (U, P)

    def _convolve(self, characters: Tensor, used: list[int]) -> Tensor:
        """The strongest answer of each filter, (U, F).

        Windows of padding alone are all alike, so one of them is enough: characters are cut at the
        longest word and the widest filter, and no maximum notices.
        """
        features, start = [], 0
        while start < len(used):
            end = start + max(1, MAX_POSITIONS // (used[start] + self.widest))
            block = characters[start:end, : max(used[start:end]) + self.widest]
            features.append(self._strongest(block))
            start = end
        return torch.cat(features) if features else characters.new_empty(0, self.n_filters).float()

    def _strongest(self, characters: Tensor) -> Tensor:
        """Convolutions as matrix products over copied windows: for short words far quicker."""
        assert self.characters is not None
        x = self.characters(characters)  # (U, C, E)
        best = []
        for convolution in self.convolutions:
            weight, bias = convolution.parameters()
            n, _, width = weight.shape
            windows = x.unfold(1, width, 1).transpose(2, 3)  # (U, C - width + 1, width, E)
            kernel = weight.permute(2, 1, 0).reshape(-1, n)  # (width · E, n)
            answers = windows.reshape(-1, len(kernel)) @ kernel
            best.append(answers.view(*windows.shape[:2], n).amax(dim=1) + bias)
        activated: Tensor = self.activation(torch.cat(best, dim=1))
        return activated


def _used_characters(ids: TokenIds) -> Tensor:
    """(U,) how many characters each token has, up to its last one that is not padding."""
    if ids.characters is None:
        assert ids.words is not None
        return torch.zeros_like(ids.words)
    differs = ids.characters != ids.characters[:, -1:]  # a token that fills its row is never cut
    places = torch.arange(1, differs.shape[1] + 1, device=differs.device)
    return (differs * places).amax(dim=1)


class LstmStack(nn.ModuleList):
    """One direction: L layers, with a residual from the second on."""

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
        self.residual = config.residual

    def forward(
        self, x: Tensor, sizes: Sequence[int], h: Tensor, c: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Packed x (N, P) → x and each layer's output, (N, P) each; h (L, B, P); c (L, B, H)."""
        outputs, states = [x], []
        for depth, layer in enumerate(self):
            y, *state = layer(x, sizes, h[depth], c[depth])
            x = x + y if self.residual and depth > 0 else y  # the state is y before the residual
            outputs.append(x)
            states.append(state)
        last_h, last_c = zip(*states, strict=True)
        return outputs, torch.stack(last_h), torch.stack(last_c)


class BiLm(nn.Module):
    """The bidirectional language model: one token encoder, one stack of LSTMs a direction.

    The two directions never see each other: layer 2 forward reads layer 1 forward only.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TokenEncoder(config.encoder, config.lstm.projection_dim)
        self.forward_stack = LstmStack(config.lstm)
        self.backward_stack = LstmStack(config.lstm)

    def forward(self, batch: Batch, state: BiLmState | None = None) -> BiLmOutput:
        """All layers of a batch of sentences, boundaries included, padded for work on top."""
        x = self.encoder(batch.ids)  # (U, P)
        layers, state = self.contextualize(x, batch.index, batch.packing, state)  # (L+1, N, 2P)
        mask = batch.mask.to(x.device)
        padded = layers.new_zeros(len(layers), *mask.shape, layers.shape[-1])
        padded[:, mask] = layers  # (L+1, B, T, 2P)
        return BiLmOutput(padded, mask, state)

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
        """Read sentences both ways, window by window, so that only the result grows with them.

        Args:
            x: (U, P) vectors of the distinct tokens.
            index: (N,) which of them each token is.
            packing: the order in which tokens are read.
            state: where to start from; zeros when None.
            mix: (K, L+1) what to keep: K weighted sums of the layers; every layer when None.

        Returns:
            (K, N, 2P), and the state in which each sentence ended.
        """
        dim = self.config.lstm.projection_dim
        n_kept = self.config.n_outputs if mix is None else len(mix)
        result = x.new_empty(n_kept, len(index), 2 * dim)
        state = state or self.initial_state(len(packing.lengths), x)
        start = state.select(packing.order)  # rows, longest first

        def read(way: int) -> tuple[Tensor, Tensor]:
            stack = (self.forward_stack, self.backward_stack)[way]
            order = (packing.forward, packing.backward)[way].to(x.device)
            half = result[..., way * dim : (way + 1) * dim]  # (K, N, P)
            h, c = start.h[way], start.c[way]  # (L, B, P), (L, B, H)
            for steps, places in packing.windows(WINDOW_TOKENS):
                sizes, tokens = packing.sizes[steps], order[places]
                running = sizes[0]
                layers, new_h, new_c = stack(
                    x[index[tokens]], sizes, h[:, :running], c[:, :running]
                )
                h = torch.cat([new_h, h[:, running:]], dim=1)
                c = torch.cat([new_c, c[:, running:]], dim=1)
                kept = layers if mix is None else torch.tensordot(mix, torch.stack(layers), dims=1)
                for k, layer in enumerate(kept):
                    half[k, tokens] = layer
            return h, c

        ends = run_both(lambda: read(0), lambda: read(1))
        h, c = (torch.stack(both) for both in zip(*ends, strict=True))
        return result, BiLmState(h, c).select(packing.order.argsort())

    def initial_state(self, n_sentences: int, like: Tensor) -> BiLmState:
        """Nothing read yet: zeros, of `like`'s kind."""
        lstm = self.config.lstm
        return BiLmState(
            like.new_zeros(2, lstm.n_layers, n_sentences, lstm.projection_dim),
            like.new_zeros(2, lstm.n_layers, n_sentences, lstm.cell_dim),
        )
