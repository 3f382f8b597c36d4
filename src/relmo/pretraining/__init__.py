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
    Inputs,
    read_inputs,
    resolve_config,
    resolve_inputs,
    resolve_resumed_inputs,
)
from relmo.text.reading import TextSource
from relmo.train.loop import Outcome
from relmo.train.run_directory import RunDirectory
from relmo.train.world import join_world


def pretrain(
    run: str | Path,
    texts: TextSource = (),
    *,
    preset: str | None = None,
    values: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    valid: TextSource = (),
    vocabulary: str | Path | None = None,
    init: str | Path | None = None,
    resume: bool = False,
    cache: str | Path | None = None,
    tensorboard: bool = False,
) -> Outcome:
    r"""Train a biLM until a limit is reached; `run/model` is the result.

    Args:
        run: a new directory, or that of the run to resume.
        texts: files, directories, patterns, or "-"; when resuming, the run's own if none.
        preset: name of sizes and recipe (`relmo.presets.list_presets`); "small" when None.
        values: settings of `relmo.config.PretrainConfig` to change, by name: {"train.epochs": 3}.
        settings: the same as text: ["train.epochs=3"].
        valid: text to validate on; some of the corpus is held out when there is none.
        vocabulary: a file of words to use instead of the corpus's own most frequent ones.
        init: a model to fine-tune, as `relmo.load` takes it.
        resume: resume from the last checkpoint, bit for bit as if there had been no stop.
        cache: where prepared text is kept; the user's cache directory when None.
        tensorboard: write TensorBoard's files too.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("text.txt").write_text("the cat sat on the mat .\n" * 200)
        >>> values = {"data.lines": True, "train.max_tokens": 500}
        >>> relmo.pretrain("run", "text.txt", preset="tiny", values=values).reason
        'max_tokens'
    """
    directory = RunDirectory(Path(run))
    inputs = _complete(resolve_inputs(texts, valid, vocabulary, init), directory, resume)
    contents = None if inputs.init is None else read_model(inputs.init)
    resumed = directory.config if resume else None
    config = resolve_config(preset, values or {}, settings, init=contents, resumed=resumed)
    before = to_toml(resolve_config(None, {}, [], resumed=resumed)) if resume else None
    shards = cache_directory() / "corpora" if cache is None else Path(cache)
    with join_world() as world:
        opened = directory.opened(to_toml(config), resume=resume, before=before)
        with opened if world.is_first else nullcontext():
            job = Job(directory, config, inputs, contents, shards, world)
            job.prepare(resume=resume)
            return job.train(resume=resume, tensorboard=tensorboard)


def _complete(given: Inputs, directory: RunDirectory, resume: bool) -> Inputs:
    """Return what the run reads: what was given and, when resuming, what it was given before."""
    inputs = resolve_resumed_inputs(given, read_inputs(directory.inputs)) if resume else given
    if not inputs.texts:
        raise ConfigError("There is no text to train on. Name files, directories or patterns.")
    return inputs


__all__ = ["Outcome", "pretrain"]
