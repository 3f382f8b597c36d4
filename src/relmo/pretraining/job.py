"""One run: the text prepared, the model built, trained and written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from relmo.config import PretrainConfig
from relmo.errors import ConfigError, DataError
from relmo.files import written_atomically
from relmo.formats import ModelContents
from relmo.formats.contents import Softmax
from relmo.model import kernels
from relmo.model.bilm import BiLm
from relmo.presets import to_toml
from relmo.pretraining.export import Facts, build_contents, export_model
from relmo.pretraining.learner import BiLmLearner, Recipe
from relmo.pretraining.report import REPORT
from relmo.pretraining.resolve import Inputs, read_inputs
from relmo.text.blocks import Blocks
from relmo.text.corpus import find_texts
from relmo.text.layouts import Part, Segments
from relmo.text.lexicon import build_lexicon, build_scheme
from relmo.text.shards import Corpus, prepare_corpus
from relmo.text.streams import Streams
from relmo.text.vocabulary import (
    SPECIAL,
    Vocabulary,
    build_vocabulary,
    check_order,
    read_vocabulary,
)
from relmo.train.interruption import Interrupted
from relmo.train.loop import Outcome, train
from relmo.train.run_directory import RunDirectory
from relmo.train.seeding import torch_settings_kept
from relmo.train.world import World

VALID_STREAMS = 4  # few, so that they read long texts


class Job:
    """A run from its inputs to its model; every process has one."""

    def __init__(
        self,
        run: RunDirectory,
        config: PretrainConfig,
        inputs: Inputs,
        init: ModelContents | None,
        cache: Path,
        world: World,
    ) -> None:
        self.run, self.config, self.inputs, self.init = run, config, inputs, init
        self.cache, self.world = cache, world

    def prepare(self, *, resume: bool) -> None:
        """Bring text into shards, words into a vocabulary, and check that they are the run's."""
        if "-" in (*self.inputs.texts, *self.inputs.valid) and self.world.size > 1:
            raise ConfigError("Several processes cannot all read standard input: name files.")
        if self.world.is_first:
            self.run.write_environment(lstm_cell=kernels.description, world_size=self.world.size)
            self._read_corpora(None)
            self._keep_inputs(resume=resume)
            self.run.write_config(to_toml(self.config))
        self.world.barrier()
        if not self.world.is_first:  # from the shards that are there now
            self._read_corpora(1)
        counts = self.corpus.count_words()
        self.vocabulary = self._resolve_vocabulary(counts)
        self._resolve_lexicon(counts)
        texts = find_texts(self.inputs.texts)
        self.facts = Facts.of(self.corpus, counts, self.vocabulary, texts)
        self.bias = torch.zeros(len(self.vocabulary))
        if self.config.objective.unigram_bias:
            self.bias = unigram_bias(self.vocabulary, counts, self.corpus.n_sentences)

    def train(self, *, resume: bool, tensorboard: bool) -> Outcome:
        """Train, and write the model whatever the reason to stop."""
        config, seed = self.config, self.config.train.seed
        scheme = build_scheme(self.lexicon, config.model.encoder.max_characters)
        blocks = Blocks.of(self.corpus)
        if self.valid is None:
            share, n_tokens = config.data.valid_share, config.data.valid_tokens
            blocks, held_out = blocks.hold_out(share, n_tokens, seed)
        else:
            held_out = Blocks.of(self.valid).some(config.data.valid_tokens, seed)
        streams = config.data.layout == "stream"
        layout = Streams if streams else Segments
        part = Part(self.world.rank, self.world.size)
        data = layout(blocks, config.data, scheme, self.vocabulary, seed=seed, part=part)
        few = config.data.model_copy(
            update={"n_streams": min(VALID_STREAMS, config.data.n_streams)}
        )
        valid = layout(held_out, few, scheme, self.vocabulary)
        n_streams = config.data.n_streams if streams else 0
        learner = BiLmLearner(
            *self._build_model(), Recipe.of(config), valid, self.world, n_streams=n_streams
        )
        try:
            outcome = train(
                learner,
                data,
                config.train,
                self.run,
                self.world,
                n_epoch_units=data.n_tokens,
                resume=resume,
                tensorboard=tensorboard,
                report=REPORT,
            )
        except Interrupted:
            self._export()
            raise
        self._export()
        return replace(outcome, unit="tokens")  # as people know the message

    def _read_corpora(self, workers: int | None) -> None:
        data = self.config.data

        def read(texts: Sequence[str]) -> Corpus:
            return prepare_corpus(
                find_texts(texts),
                tokenizer=self.config.model.tokenizer,
                lines=data.lines,
                language=data.language,
                cache=self.cache,
                encoding=data.encoding,
                errors=data.errors,
                workers=workers,
            )

        self.corpus = read(self.inputs.texts)
        self.valid = read(self.inputs.valid) if self.inputs.valid else None

    def _keep_inputs(self, *, resume: bool) -> None:
        """Write inputs.json; a run is resumed with the text that it began with."""
        keys = {"key": self.corpus.key, "valid_key": self.valid and self.valid.key}
        if resume:
            before = read_inputs(self.run.inputs)
            if {name: before.get(name) for name in keys} != keys:
                raise DataError(
                    f"{self.run.path} was trained on other text: {' '.join(before['texts'])}. Give "
                    "that, unchanged, or start a new run that fine-tunes its model.",
                    settings=["init"],
                )
        with written_atomically(self.run.inputs) as written:
            text = json.dumps({**asdict(self.inputs), **keys}, indent=2) + "\n"
            written.write_text(text, encoding="utf-8")

    def _resolve_vocabulary(self, counts: Mapping[str, int]) -> Vocabulary:
        """The file's, the earlier model's, or the corpus's most frequent words."""
        init = self.init
        if self.inputs.vocabulary is not None:
            vocabulary = read_vocabulary(Path(self.inputs.vocabulary))
            check_order(vocabulary, counts, self.inputs.vocabulary)
            return vocabulary
        if init is not None and init.softmax is not None and init.vocabulary is not None:
            return init.vocabulary
        data = self.config.data
        return build_vocabulary(counts, data.vocabulary_size, data.min_count)

    def _resolve_lexicon(self, counts: Mapping[str, int]) -> None:
        """The earlier model's, or the corpus's own, which may be smaller than what is allowed."""
        encoder = self.config.model.encoder
        self.lexicon = None if self.init is None else self.init.lexicon
        if self.init is not None or encoder.scheme != "lexicon":
            return
        self.lexicon = build_lexicon(counts, encoder.n_characters, encoder.n_words)
        sizes = {"n_characters": len(self.lexicon.characters), "n_words": len(self.lexicon.words)}
        model = self.config.model.model_copy(update={"encoder": encoder.model_copy(update=sizes)})
        self.config = self.config.model_copy(update={"model": model})

    def _build_model(self) -> tuple[BiLm, Softmax]:
        """The network and its softmax: random, but for what an earlier model knows."""
        dim, init = self.config.model.lstm.projection_dim, self.init
        with torch_settings_kept():
            torch.manual_seed(self.config.train.seed)
            bilm = BiLm(self.config.model)
            weight = torch.randn(len(self.vocabulary), dim) * dim**-0.5
        bias = self.bias.clone()
        if init is not None:
            bilm.load_state_dict({name: t.float() for name, t in init.tensors.items()})
            if init.softmax is not None and init.vocabulary is not None:
                old = init.vocabulary.numbers
                known = [(old[w], new) for w, new in self.vocabulary.numbers.items() if w in old]
                before, now = torch.tensor(known, dtype=torch.long).reshape(-1, 2).t()
                weight[now] = init.softmax.weight[before]
                bias[now] = init.softmax.bias[before]
        return bilm.train(), Softmax(weight, bias)

    def _export(self) -> None:
        if self.world.is_first:
            contents = build_contents(
                self.run, self.config, self.vocabulary, self.facts, self.lexicon, self.init
            )
            export_model(self.run, contents, self.config.objective.n_samples)
        self.world.barrier()


def unigram_bias(vocabulary: Vocabulary, counts: Mapping[str, int], n_sentences: int) -> Tensor:
    """(V,) log of each word's share of what is predicted; words never met count as met once."""
    found = torch.tensor([counts.get(word, 0) for word in vocabulary.words], dtype=torch.float64)
    begin, end, unknown = (vocabulary.number(word) for word in SPECIAL)
    found[begin] = found[end] = n_sentences / 2  # one of them a sentence and direction
    found[unknown] = 0
    found[unknown] = sum(counts.values()) + n_sentences - found.sum()
    return (found.clamp(min=1) / found.clamp(min=1).sum()).log().float()
