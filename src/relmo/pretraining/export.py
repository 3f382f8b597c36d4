"""Exporting a run: a model directory with a filled model card, and a learning curve."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relmo import __version__
from relmo.config import PretrainConfig
from relmo.errors import ConfigError, DataError, RelmoWarning
from relmo.formats import ModelContents, native
from relmo.formats.contents import Softmax
from relmo.pretraining.report import draw_curve
from relmo.text.lexicon import Lexicon
from relmo.text.shards import Corpus
from relmo.text.vocabulary import Vocabulary
from relmo.train.checkpoint import read_checkpoint
from relmo.train.module_learner import part_of
from relmo.train.run_directory import RunDirectory
from relmo.train.state import TrainState


@dataclass(frozen=True)
class Facts:
    """The corpus and its vocabulary in numbers."""

    texts: tuple[str, ...]
    n_sentences: int
    n_tokens: int
    n_distinct: int
    n_words: int
    coverage: float  # share of the tokens whose word is in the vocabulary

    @classmethod
    def of(
        cls,
        corpus: Corpus,
        counts: Mapping[str, int],
        vocabulary: Vocabulary,
        texts: Sequence[str],
    ) -> Facts:
        """Count, where `counts` are those of the corpus's words."""
        known = sum(n for word, n in counts.items() if word in vocabulary.numbers)
        return cls(
            tuple(Path(text).name if text != "-" else "standard input" for text in texts),
            corpus.n_sentences,
            corpus.n_tokens,
            len(counts),
            len(vocabulary),
            known / corpus.n_tokens,
        )


def build_contents(
    run: RunDirectory,
    config: PretrainConfig,
    vocabulary: Vocabulary,
    facts: Facts,
    lexicon: Lexicon | None,
    init: ModelContents | None,
) -> ModelContents:
    """The best model of a run so far; `init` is the model that it was initialised with.

    Where training averaged the weights, the model has the averages.
    """
    checkpoint = read_checkpoint(run.best if run.best.exists() else run.last)
    weights = {**checkpoint.tensors, **part_of(checkpoint.tensors, "ema")}
    softmax = part_of(weights, "softmax")
    return ModelContents(
        config=config.model,
        tensors=part_of(weights, "bilm"),
        origin=f"relmo {__version__} pretrain",
        lexicon=lexicon,
        vocabulary=vocabulary,
        softmax=Softmax(softmax["weight"], softmax["bias"]),
        facts=_card(config, facts, TrainState.from_dict(checkpoint.values), init),
    )


def export_model(run: RunDirectory, contents: ModelContents, n_samples: int) -> None:
    """Put the model in the place of an earlier one, and draw what metrics.jsonl holds."""
    new, old = run.path / ".new" / "model", run.path / ".old"
    for left_over in (new.parent, old):
        shutil.rmtree(left_over, ignore_errors=True)
    new.parent.mkdir()
    native.write(contents, new)
    if run.model.exists():
        run.model.rename(old)
    new.rename(run.model)
    new.parent.rmdir()
    shutil.rmtree(old, ignore_errors=True)
    sampled = 0 < n_samples < len(contents.vocabulary or ())
    label = f"training (among {n_samples:,} samples)" if sampled else "training"
    try:
        draw_curve(run.metrics, run.path, training_label=label)
    except (ConfigError, DataError) as reason:  # an extra missing, no row yet: no reason to fail
        warnings.warn(f"No learning curve: {reason}", RelmoWarning, stacklevel=2)


def _card(
    config: PretrainConfig, facts: Facts, train_state: TrainState, init: ModelContents | None
) -> dict[str, str]:
    best = train_state.best or {}
    names = ", ".join(facts.texts[:20]) + (", …" if len(facts.texts) > 20 else "")
    train, data, objective = config.train, config.data, config.objective
    card = {
        "text": names,
        "sentences": f"{facts.n_sentences:,}",
        "tokens": f"{facts.n_tokens:,}, {facts.n_distinct:,} distinct",
        "vocabulary": f"{facts.n_words:,} words, {100 * facts.coverage:.2f} % of the tokens",
        "trained": f"{train_state.units:,} tokens in {train_state.step:,} steps, "
        f"{train_state.seconds / 60:.1f} minutes",
        "recipe": f"{train.optimizer}, learning rate {train.learning_rate:g}, {data.layout}, "
        f"{objective.n_samples or 'all'} samples, dropout {objective.dropout:g}, "
        f"case noise {data.case_noise:g}, seed {train.seed}",
    }
    if init is not None:
        before = [init.facts.get(name) for name in ("trained", "recipe", "went on from")]
        card["went on from"] = "; ".join([init.origin, *filter(None, before)])
    if best:
        card["held-out perplexity"] = ", ".join(
            f"{way} {best[f'{way}_perplexity']:.2f}" for way in ("forward", "backward", "average")
        )
    return card
