"""A small learner that is really trained, and a program that trains it, to be killed by tests.

python toy.py RUN [--resume] [--at STEP --kill SIGNAL[,SIGNAL] [--only-rank N]] ...
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from relmo.config import TrainConfig
from relmo.errors import RelmoError
from relmo.train.loop import Metric, Step, train
from relmo.train.run_directory import RunDirectory
from relmo.train.world import World, join_world

N_EPOCH_STEPS = 12
BATCH = 8
WIDTH = 6


class ToyData:
    """Batches that follow from their number alone; each rank takes its part."""

    def __init__(self, world=None, n_epoch_steps=N_EPOCH_STEPS):
        self.world, self.n_epoch_steps = world or World(), n_epoch_steps
        self.n_made = 0

    @property
    def n_epoch_units(self):
        return self.n_epoch_steps * BATCH

    def batches(self, position):
        number = position.get("batch", 0)
        while True:
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(BATCH, WIDTH, generator=generator)
            y = x.sin().sum(1, keepdim=True)
            number += 1
            self.n_made += 1
            part = slice(self.world.rank, None, self.world.size)
            yield (x[part], y[part]), {"batch": number, "epoch": number // self.n_epoch_steps}


class ToyLearner:
    """Regression with dropout, momentum, and something carried from batch to batch."""

    unit = "points"
    decides = Metric("loss", higher_is_better=False)

    def __init__(self, world=None, dropout=0.3, hook=None):
        torch.manual_seed(1)
        self.world, self.hook = world or World(), hook or (lambda learner: None)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1)
        )
        self.wrapped = self.world.wrap(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1.0, momentum=0.9)
        self.carried = torch.zeros(1)
        self.n_steps = 0
        self.n_evaluations = 0

    def learn(self, batch, learning_rate):
        self.hook(self)
        x, y = batch
        errors = (self.wrapped(x) + 0.1 * self.carried - y).square()
        # The wrapped module averages over ranks, so that this is the gradient of the whole mean.
        self.optimizer.zero_grad()
        (errors.sum() * self.world.size / BATCH).backward()
        norm = nn.utils.get_total_norm([p.grad for p in self.net.parameters()])
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        total = errors.detach().sum()
        self.world.sum(total)
        self.carried = total[None] / BATCH / 100
        self.n_steps += 1
        return Step(float(total) / BATCH, BATCH, float(norm))

    def evaluate(self):
        self.n_evaluations += 1
        self.net.eval()
        with torch.no_grad():
            x = torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)
            loss = functional.mse_loss(self.net(x), x.sin().sum(1, keepdim=True)).item()
        self.net.train()
        return {"loss": loss, "forward_perplexity": 2 + loss, "backward_perplexity": 3 + loss}

    def state(self):
        momentum = {
            f"momentum.{i}": values["momentum_buffer"]
            for i, values in self.optimizer.state_dict()["state"].items()
        }
        return {**self.net.state_dict(prefix="net."), **momentum, "carried": self.carried}

    def load(self, state):
        self.net.load_state_dict(
            {k.removeprefix("net."): v for k, v in state.items() if k.startswith("net.")}
        )
        for i, parameter in enumerate(self.net.parameters()):
            if f"momentum.{i}" in state:
                self.optimizer.state[parameter]["momentum_buffer"] = state[f"momentum.{i}"]
        self.carried = state["carried"]


def make_config(**changes):
    values = {"learning_rate": 0.02, "epochs": 4, "validate_every": 7, "warmup": 5, "seed": 3}
    return TrainConfig.model_validate({**values, **changes})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--at", type=int, default=-1, help="steps of this process until")
    parser.add_argument("--kill", default="", help="names of what it sends itself")
    parser.add_argument("--only-rank", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--no-checkpoints", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background

    with join_world("cpu") as world:

        def hook(learner):
            if learner.n_steps == given.at and world.rank == given.only_rank:
                for name in filter(None, given.kill.split(",")):
                    os.kill(os.getpid(), getattr(signal, name))
                    time.sleep(0.05)

        config = make_config(
            epochs=given.epochs, checkpoint_minutes=1000 if given.no_checkpoints else 1e-9
        )
        run = RunDirectory(given.run)
        learner = ToyLearner(world, given.dropout, hook)
        data = ToyData(world)
        settings = f"[train]\nepochs = {given.epochs}\n"

        def go():
            train(
                learner,
                data,
                config,
                run,
                world,
                n_epoch_units=data.n_epoch_units,
                resume=given.resume,
            )

        if world.is_first:
            with run.opened(settings, resume=given.resume):
                world.barrier()
                go()
        else:
            world.barrier()
            go()


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main()
    except RelmoError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(getattr(error, "exit_code", 2))
