"""A biLM and its softmax, as the training loop sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from relmo.config import ObjectiveConfig, PretrainConfig
from relmo.formats.contents import Softmax
from relmo.model.bilm import BiLm
from relmo.model.output import BiLmState
from relmo.model.samples import SoftmaxRows, sample_log_uniform
from relmo.model.softmax import log_probabilities, softmax_loss
from relmo.model.threads import between_products
from relmo.pretraining.report import perplexity
from relmo.text.batch import Packing
from relmo.text.characters import TokenIds
from relmo.text.layouts import LmBatch, Segments
from relmo.text.streams import Streams
from relmo.train.ema import MovingAverage
from relmo.train.learner import Metric, Step
from relmo.train.module_learner import part_of
from relmo.train.optim import (
    Clipping,
    RowOptimizer,
    build_optimizer,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)
from relmo.train.world import World


@dataclass(frozen=True)
class LmTensors:
    """A batch on the device that learns from it; see `relmo.text.layouts.LmBatch`."""

    ids: TokenIds
    index: Tensor  # (2, N)
    targets: Tensor  # (2, N)
    packing: Packing

    @classmethod
    def of(cls, batch: LmBatch, device: torch.device) -> LmTensors:
        """Move a batch to a device, without a copy on a CPU."""
        index, targets = (torch.from_numpy(a).to(device) for a in (batch.index, batch.targets))
        return cls(batch.ids, index, targets, batch.packing)


class LanguageModel(nn.Module):
    """The loss of a batch: what both directions say of the next word, and of the one before."""

    def __init__(self, bilm: BiLm, dropout: float) -> None:
        super().__init__()
        self.bilm = bilm
        self.dropout = dropout

    def predict(
        self, batch: LmTensors, state: BiLmState, dropout: float
    ) -> tuple[Tensor, BiLmState]:
        """(2, N, P) what words are predicted from, and the state after it."""
        x = self.bilm.encoder(batch.ids)  # (U, P)
        tops = []
        with between_products():
            read = self.bilm.run_windows(x, batch.index, batch.packing, state, dropout=dropout)
            for _, layers, after in read:
                tops.append(layers[-1])
                state = after
            top = torch.cat(tops, dim=1)
            return functional.dropout(top, dropout) if dropout else top, state

    def forward(
        self, batch: LmTensors, state: BiLmState, rows: SoftmaxRows, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, BiLmState]:
        """Sum of the losses of all predictions, given rows of the softmax."""
        top, state = self.predict(batch, state, self.dropout)
        top, targets = top.flatten(0, 1), batch.targets.flatten()  # (2N, P), (2N,)
        real = targets >= 0
        if not real.all():
            top, targets = top[real], targets[real]
        return softmax_loss(top, targets, rows, weight, bias), state


@dataclass(frozen=True)
class Recipe:
    """How a biLM is trained, where the loop does not know it.

    Attributes:
        objective: samples, dropout and scale of the loss.
        optimizer: "adam" or "adagrad".
        clip: limits of gradients.
        ema: decay of the moving average of all weights, softmax included; it costs time and memory
            for the whole vocabulary.
    """

    objective: ObjectiveConfig
    optimizer: str
    clip: Clipping
    ema: float | None = None

    @classmethod
    def of(cls, config: PretrainConfig) -> Recipe:
        """As configured."""
        train = config.train
        return cls(config.objective, train.optimizer, Clipping.of(train), train.ema)


class BiLmLearner:
    """Trains a biLM with its softmax; see `relmo.train.learner.Learner`.

    Args:
        bilm: the network.
        softmax: the output layer of both directions.
        recipe: loss, optimizer, clipping.
        valid: held-out text.
        world: the processes that train together.
        n_streams: of the layout `stream`, whose state is carried over from batch to batch; else 0.

    Attributes:
        bilm: the network.
        weight: (V, P) of the softmax.
        bias: (V,) of the softmax.
    """

    unit = "words"
    decides = Metric("loss", higher_is_better=False)

    def __init__(
        self,
        bilm: BiLm,
        softmax: Softmax,
        recipe: Recipe,
        valid: Segments | Streams,
        world: World,
        *,
        n_streams: int = 0,
    ) -> None:
        self.bilm = bilm.to(world.device)
        self.weight, self.bias = softmax.weight.to(world.device), softmax.bias.to(world.device)
        self._objective, self._clip = recipe.objective, recipe.clip
        self._valid, self._world = valid, world
        self._model = LanguageModel(self.bilm, recipe.objective.dropout)
        self._wrapped = world.wrap(self._model)
        self._parameters = [p for p in bilm.parameters() if p.requires_grad]
        self._optimizer = build_optimizer(recipe.optimizer, self._parameters, 1.0)
        self._rows = {
            name: RowOptimizer(recipe.optimizer, tensor)
            for name, tensor in (("weight", self.weight), ("bias", self.bias))
        }
        self._ema = None if recipe.ema is None else MovingAverage(self._weights(), recipe.ema)
        # Of streams, where each of this process's ended; None where every batch starts anew.
        self._carried = self._start(n_streams // world.size) if n_streams else None

    def learn(self, batch: LmBatch, rate: float) -> Step:
        """Make one update from this process's part of a batch."""
        world = self._world
        with between_products():
            tensors = LmTensors.of(batch, world.device)
            n_real = torch.tensor((batch.targets >= 0).sum(), dtype=torch.float64)
            world.sum(n_real)
            rows = self._choose_rows(batch)
            weight, bias = (rows.gather(t).requires_grad_() for t in (self.weight, self.bias))
            state = self._carried or self._start(len(batch.packing.lengths))
        with self._precision():
            loss, after = self._wrapped(tensors, state, rows, weight, bias)
        # Gradients are averaged over processes, so that each counts its share as many times.
        (loss * (self._objective.loss_scale * world.size / n_real.item())).backward()
        norm = self._update(rows, weight, bias, rate)
        total = loss.detach().to("cpu", torch.float64)
        world.sum(total)
        if self._carried is not None:
            self._carried = BiLmState(after.h.detach(), after.c.detach())
        return Step(total.item() / n_real.item(), int(n_real.item()) // 2, norm)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Perplexity on the held-out text, by the full softmax, in the layout of training.

        Streams start from the state that training carries: they have never seen a zero state. The
        weights are the averaged ones if there are any.
        """
        with nullcontext() if self._ema is None else self._ema.applied():
            return self._evaluate()

    def _evaluate(self) -> dict[str, float]:
        sums, n = torch.zeros(2, dtype=torch.float64), 0
        after: BiLmState | None = None
        for batch in self._valid.validation_batches():
            tensors = LmTensors.of(batch, self._world.device)
            n_rows = len(batch.packing.lengths)
            if self._carried is None:
                state = self._start(n_rows)
            elif after is None:
                state = self._carried.select(np.arange(n_rows) % self._carried.h.shape[2])
            else:
                state = after
            with self._precision():
                top, after = self._model.predict(tensors, state, 0.0)
            for way in (0, 1):
                found = log_probabilities(
                    top[way].float(), tensors.targets[way], self.weight, self.bias
                )
                sums[way] -= found.double().sum().cpu()
            n += batch.targets.shape[1]
        forward, backward = (sums / max(1, n)).tolist()
        perplexities = perplexity(forward), perplexity(backward)
        return {
            "loss": (forward + backward) / 2,
            "forward_perplexity": perplexities[0],
            "backward_perplexity": perplexities[1],
            "average_perplexity": sum(perplexities) / 2,
        }

    def state(self) -> dict[str, Tensor]:
        """Weights, the optimizers' state, averaged weights, and the state of streams."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "bilm": self.bilm.state_dict(),
            "softmax": {"weight": self.weight, "bias": self.bias},
            "optimizer": optimizer_state(self._optimizer),
            **{f"rows.{name}": rows.state() for name, rows in self._rows.items()},
            "ema": {} if self._ema is None else self._ema.state(),
        }
        if self._carried is not None:
            parts["carried"] = {
                name: self._world.gather(tensor, dim=2)
                for name, tensor in (("h", self._carried.h), ("c", self._carried.c))
            }
        return {f"{part}.{name}": t for part, found in parts.items() for name, t in found.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore such a state, with any number of processes."""
        self.bilm.load_state_dict(part_of(state, "bilm"))
        softmax = part_of(state, "softmax")
        self.weight.copy_(softmax["weight"])
        self.bias.copy_(softmax["bias"])
        load_optimizer_state(self._optimizer, part_of(state, "optimizer"))
        for name, rows in self._rows.items():
            rows.load(part_of(state, f"rows.{name}"))
        if self._ema is not None:
            self._ema.load(part_of(state, "ema"))
        if self._carried is not None:
            carried = part_of(state, "carried")
            n, rank = self._carried.h.shape[2], self._world.rank
            own = np.arange(rank * n, (rank + 1) * n)
            h, c = (carried[name].to(self._world.device) for name in ("h", "c"))
            self._carried = BiLmState(h, c).select(own)

    def _weights(self) -> dict[str, Tensor]:
        """All that is trained, by its names in `state`."""
        named = self.bilm.named_parameters()
        trained = {f"bilm.{name}": p for name, p in named if p.requires_grad}
        return {**trained, "softmax.weight": self.weight, "softmax.bias": self.bias}

    def _start(self, n_rows: int) -> BiLmState:
        return self.bilm.initial_state(n_rows, self.weight)

    def _choose_rows(self, batch: LmBatch) -> SoftmaxRows:
        """The samples, the same for all processes, and everybody's targets."""
        generator = torch.Generator().manual_seed(batch.seed)
        samples = sample_log_uniform(self._objective.n_samples, len(self.bias), generator)
        targets = torch.from_numpy(batch.targets[batch.targets >= 0])
        return samples.rows_with(self._world.union(targets))

    def _precision(self) -> Any:
        """bfloat16 where it is quick."""
        if self._world.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def _update(self, rows: SoftmaxRows, weight: Tensor, bias: Tensor, rate: float) -> float:
        """Make a step of both optimizers unless gradients are not finite; return their norm."""
        assert weight.grad is not None
        assert bias.grad is not None
        self._world.sum(weight.grad, bias.grad)
        of_rows = [gradient.div_(self._world.size) for gradient in (weight.grad, bias.grad)]
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = self._clip.apply([*gradients, *of_rows])
        if math.isfinite(norm):
            set_learning_rate(self._optimizer, rate)
            self._optimizer.step()
            with between_products():
                for optimizer, gradient in zip(self._rows.values(), of_rows, strict=True):
                    optimizer.update(rows.words, gradient, rate)
            if self._ema is not None:
                self._ema.update()
        self._optimizer.zero_grad()
        return norm
