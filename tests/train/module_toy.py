"""A toy task on `ModuleLearner` and `Examples`, in a program that tests can kill.

Sequences of letters; the question is whether an "e" stands before an "x".

python module_toy.py RUN [--resume] [--optimizer NAME] [--kill-at STEP]
"""

import argparse
import os
import random
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from relmo.config import TrainConfig
from relmo.train.examples import Examples
from relmo.train.loop import Metric, train
from relmo.train.module_learner import ModuleLearner
from relmo.train.optim import Clipping
from relmo.train.run_directory import RunDirectory
from relmo.train.world import World, join_world

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ACCURACY = Metric("accuracy", higher_is_better=True)
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=0.01),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.5),
}
RATES = {"adamw": 0.02, "sgd": 0.3, "rmsprop": 0.005}


def make_examples(n, seed):
    rng = random.Random(seed)
    words = ["".join(rng.choices("aebx", k=rng.randrange(2, 9))) for _ in range(n)]
    return [(word, "e" in word.partition("x")[0] and "x" in word) for word in words]


def collate(examples):
    ids = [torch.tensor([LETTERS.index(c) + 1 for c in word]) for word, _ in examples]
    padded = pad_sequence(ids, batch_first=True)  # (B, T), 0 where there is no letter
    return padded, torch.tensor([float(label) for _, label in examples])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(27, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(16, 1)

    def forward(self, ids):
        states, _ = self.lstm(self.embed(ids))  # (B, T, H)
        last = (ids > 0).sum(1) - 1
        return self.output(self.dropout(states[torch.arange(len(ids)), last]))[:, 0]


def build(optimizer="adamw", *, world=None, hook=None, **options):
    """A learner and its data."""
    world = world or World()
    torch.manual_seed(5)
    net = Net()
    data = Examples(
        make_examples(240, seed=1),
        collate,
        batch_size=16,
        length=lambda example: len(example[0]),
        seed=2,
        world=world,
    )
    held_out = Examples(make_examples(100, seed=9), collate, batch_size=32)

    def loss(module, batch):
        if hook is not None:
            hook()
        ids, labels = batch
        logits = module(ids)
        right = ((logits > 0) == (labels > 0)).float().mean().item()
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        return loss, len(ids), {"batch_accuracy": right}

    def evaluate(module):
        batches = [((module(ids) > 0) == (labels > 0)) for ids, labels in held_out.in_order()]
        return {"accuracy": torch.cat(batches).float().mean().item()}

    groups = [
        {"params": [*net.embed.parameters(), *net.lstm.parameters()]},
        {"params": net.output.parameters(), "rate_factor": 0.5},
    ]
    options = {"clip": Clipping(norm=5.0, value=1.0), "ema": 0.9, **options}
    learner = ModuleLearner(
        net,
        loss=loss,
        evaluate=evaluate,
        optimizer=OPTIMIZERS[optimizer](groups),
        decides=ACCURACY,
        unit="words",
        world=world,
        **options,
    )
    return learner, data


def make_config(optimizer="adamw", **changes):
    values = {"learning_rate": RATES[optimizer], "epochs": 4, "decay": "plateau", "seed": 3}
    values |= {"validate_epochs": 1, "plateau_patience": 1, "checkpoint_minutes": 1e-9}
    return TrainConfig.model_validate({**values, **changes})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--kill-at", type=int, default=-1, help="steps of this process until")
    given = parser.parse_args()
    n_steps = [0]

    def hook():
        if n_steps[0] == given.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        n_steps[0] += 1

    torch.set_num_threads(1)
    with join_world("cpu") as world:
        learner, data = build(given.optimizer, world=world, hook=hook)
        run = RunDirectory(given.run)
        config = make_config(given.optimizer)
        options = {"n_epoch_units": len(data), "resume": given.resume}
        if world.is_first:
            with run.opened("", resume=given.resume):
                world.barrier()
                train(learner, data, config, run, world, **options)
        else:
            world.barrier()
            train(learner, data, config, run, world, **options)


if __name__ == "__main__":
    main()
