"""A task in one file: which words have a capital inside their sentence? MODEL RUN [--resume]"""

import sys

import torch
from torch import nn

from relmo.config import TrainConfig
from relmo.features import FeatureStore, open_features
from relmo.model.scalar_mix import ScalarMix
from relmo.train import Examples, Metric, ModuleLearner, RunDirectory, train

WORDS = ("Ann", "saw", "the", "Thames", "and", "went", "Home", "by", "Boat", "alone")
SENTENCES = [[WORDS[(i * k + k) % 10] for k in range(1, 3 + i % 7)] for i in range(1, 200)]


class Tagger(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features, self.mix = features, ScalarMix(features.n_layers, dropout=0.1)
        self.output = nn.LSTM(features.dim, 32, proj_size=2, batch_first=True)

    def forward(self, sentences):
        layers = self.features.batch(sentences)
        return self.output(self.mix(layers.values, layers.mask))[0][layers.mask]  # (N, 2)

    def loss(self, sentences):
        scores = self(sentences)
        return nn.functional.cross_entropy(scores, labels(sentences)), len(scores)

    @torch.no_grad()
    def predict(self, sentences):
        return self(sentences).argmax(dim=1)


def labels(sentences):
    return torch.tensor([int(n > 0 and w[0].isupper()) for s in sentences for n, w in enumerate(s)])


def run_task(model, folder, *, resume=False, dev=SENTENCES[150:], **limits):
    torch.manual_seed(1)  # of the first weights
    tagger = Tagger(FeatureStore().open(*open_features(model), SENTENCES))
    learner = ModuleLearner(
        tagger,
        loss=Tagger.loss,
        evaluate=lambda t: {"accuracy": (t.predict(dev) == labels(dev)).float().mean().item()},
        optimizer=torch.optim.Adam(tagger.parameters()),
        decides=Metric("accuracy", higher_is_better=True),
    )
    data, run = Examples(SENTENCES[:150], list, batch_size=16), RunDirectory(folder)
    config = TrainConfig(learning_rate=0.02, validate_epochs=1, checkpoint_minutes=1e-9, **limits)
    with run.opened("", resume=resume):
        return tagger, train(learner, data, config, run, resume=resume, restore_best=True)


if __name__ == "__main__":
    run_task(*sys.argv[1:3], resume="--resume" in sys.argv, epochs=4)
