"""Training, for whatever can learn from a batch: it knows neither biLMs nor tasks."""

from relmo.train.examples import Examples
from relmo.train.learner import Learner, Metric, Step, TrainingData
from relmo.train.loop import Outcome, train
from relmo.train.module_learner import ModuleLearner
from relmo.train.run_directory import RunDirectory

__all__ = [
    "Examples",
    "Learner",
    "Metric",
    "ModuleLearner",
    "Outcome",
    "RunDirectory",
    "Step",
    "TrainingData",
    "train",
]
