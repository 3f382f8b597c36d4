"""Pre-training: text in, a biLM of your own out.

text ─► Corpus ─► Vocabulary
          └─► Blocks ─► Segments or Streams ─► BiLmLearner, under train.loop ─► RUN/model
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from relmo.errors import ConfigError
from relmo.formats import read_model
from relmo.formats.published import cache_directory
from relmo.presets import to_toml
from relmo.pretraining.job import Job
from relmo.pretraining.resolve import (
    read_inputs,
    resolve_config,
    resolve_inputs,
    resolve_resumed_inputs,
)
from relmo.train.loop import Outcome
from relmo.train.run_directory import RunDirectory
from relmo.train.world import join_world


def pretrain(
    run: str | Path,
    texts: Sequence[str] = (),
    *,
    preset: str | None = None,
    values: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    valid: Sequence[str] = (),
    vocabulary: str | Path | None = None,
    init: str | Path | None = None,
    resume: bool = False,
    cache: Path | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Train a biLM until a limit is reached; `run/model` is the result.

    Args:
        run: a new directory, or that of the run to resume.
        texts: files, directories, patterns, or "-"; when resuming, the run's own if none.
        preset: sizes and recipe.
        values: what to change of them, by name: {"train.epochs": 3}.
        settings: the same as text: ["train.epochs=3"].
        valid: text to validate on; some of the corpus is held out when there is none.
        vocabulary: a file of words to use instead of the corpus's own most frequent ones.
        init: a model to fine-tune.
        resume: resume from the last checkpoint, bit for bit as if there had been no stop.
        cache: where prepared text is kept; the user's cache directory when None.
        tensorboard: write TensorBoard's files too.
    """
    directory = RunDirectory(Path(run))
    inputs = resolve_inputs(texts, valid, vocabulary, init)
    if resume:
        inputs = resolve_resumed_inputs(inputs, read_inputs(directory.inputs))
    if not inputs.texts:
        raise ConfigError("There is no text to train on. Name files, directories or patterns.")
    contents = None if inputs.init is None else read_model(inputs.init)
    resumed = directory.config if resume else None
    config = resolve_config(preset, values or {}, settings, init=contents, resumed=resumed)
    before = to_toml(resolve_config(None, {}, [], resumed=resumed)) if resume else None
    cache = cache or cache_directory() / "corpora"
    with join_world() as world:
        opened = directory.opened(to_toml(config), resume=resume, before=before)
        with opened if world.is_first else nullcontext():
            job = Job(directory, config, inputs, contents, cache, world)
            job.prepare(resume=resume)
            return job.train(resume=resume, tensorboard=tensorboard)


__all__ = ["Outcome", "pretrain"]
