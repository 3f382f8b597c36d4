"""How fast relmo trains, beside a plain PyTorch trainer in bilm-tf's structure, all in one run.

    python benchmarks/pretrain.py                              small, on text that Python brings
    python benchmarks/pretrain.py --text novels/*.txt.gz       on prose of your own
    python benchmarks/pretrain.py --size original --steps 3
    python benchmarks/pretrain.py --grow novels/*.txt.gz       memory, on a tenth and on all

Machines are noisy: only the ratios within a run count. Every rate is the best of several rounds in
which all contestants take their turns. Words are tokens that each direction predicts.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import re
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, for all contestants

import torch
from torch import Tensor, nn

from relmo.config import DataConfig, ObjectiveConfig, PretrainConfig
from relmo.formats.contents import Softmax
from relmo.model import kernels
from relmo.model.bilm import BiLm
from relmo.model.samples import sample_log_uniform
from relmo.presets import read_preset
from relmo.pretraining.learner import BiLmLearner, Recipe
from relmo.text.blocks import Blocks
from relmo.text.characters import ByteCharacters
from relmo.text.layouts import LmBatch, Segments
from relmo.text.shards import Corpus, prepare_corpus
from relmo.text.streams import Streams
from relmo.text.vocabulary import Vocabulary, build_vocabulary
from relmo.train.optim import Clipping, RowOptimizer, build_optimizer, clip_norm
from relmo.train.world import World

ROUNDS = 3
DATA = DataConfig(n_streams=64, n_steps=20, batch_tokens=1280)
OBJECTIVE = ObjectiveConfig(n_samples=4096, dropout=0.1)


class PlainTrainer:
    """bilm-tf's structure in plain PyTorch.

    Both directions encode every token they read, at 50 characters; a call of the cell a step, and
    autograd through all of it. Only the softmax is as frugal as TensorFlow's: it takes the rows of
    the samples and of the targets.
    """

    def __init__(self, config: PretrainConfig, n_words: int) -> None:
        torch.manual_seed(0)
        self.bilm, self.lstm = BiLm(config.model), config.model.lstm
        self.weight = (
            torch.randn(n_words, self.lstm.projection_dim) * self.lstm.projection_dim**-0.5
        )
        self.bias = torch.zeros(n_words)
        self.parameters = list(self.bilm.parameters())
        self.optimizer = build_optimizer("adagrad", self.parameters, 0.2)
        self.rows = [RowOptimizer("adagrad", t) for t in (self.weight, self.bias)]

    def encode(self, characters: Tensor) -> Tensor:
        """Every token, whether it was met before or not."""
        encoder = self.bilm.encoder
        x = encoder.characters(characters).transpose(1, 2)
        x = torch.cat([c(x).amax(dim=-1).relu() for c in encoder.convolutions], dim=1)
        for highway in encoder.highways:
            gate = highway.gate(x).sigmoid()
            x = gate * highway.transform(x).relu() + (1 - gate) * x
        return encoder.projection(x)

    def read(self, layer: nn.Module, x: Tensor) -> Tensor:
        """One layer in one direction, (T, B, P)."""
        h = x.new_zeros(x.shape[1], self.lstm.projection_dim)
        c = x.new_zeros(x.shape[1], self.lstm.cell_dim)
        outputs = []
        for step in x:  # (B, P)
            gates = nn.functional.linear(step, layer.input_weight, layer.bias)
            gates = gates + nn.functional.linear(h, layer.recurrent_weight)
            i, f, g, o = gates.chunk(4, dim=1)
            c = (f.sigmoid() * c + i.sigmoid() * g.tanh()).clamp(-3, 3)
            h = nn.functional.linear(o.sigmoid() * c.tanh(), layer.projection_weight).clamp(-3, 3)
            outputs.append(h)
        return torch.stack(outputs)

    def learn(self, batch: LmBatch) -> int:
        """Make one update; how many tokens each direction predicted."""
        losses, n_steps = [], len(batch.packing.sizes)
        generator = torch.Generator().manual_seed(batch.seed)
        samples = sample_log_uniform(OBJECTIVE.n_samples, len(self.bias), generator)
        rows = samples.rows_with(batch.targets.flatten())
        weight, bias = (rows.gather(t).requires_grad_() for t in (self.weight, self.bias))
        for way, stack in enumerate((self.bilm.forward_stack, self.bilm.backward_stack)):
            x = self.encode(batch.ids.characters[batch.index[way]])  # every token of the batch
            x = x.view(n_steps, -1, x.shape[1])
            for depth, layer in enumerate(stack):
                x = nn.functional.dropout(x, OBJECTIVE.dropout)
                y = self.read(layer, x)
                x = x + y if depth else y
            x = nn.functional.dropout(x, OBJECTIVE.dropout).flatten(0, 1)
            places = rows.places(batch.targets[way])
            logits = x @ weight[: rows.n_samples].t() + bias[: rows.n_samples]
            logits = logits + rows.correction[: rows.n_samples].float()
            own = (x * weight[places]).sum(1) + bias[places] + rows.correction[places].float()
            hits = places[:, None] == torch.arange(rows.n_samples)
            logits = torch.cat([own[:, None], logits.masked_fill(hits, -torch.inf)], dim=1)
            losses.append(-logits.log_softmax(dim=1)[:, 0].mean())
        (sum(losses) / 2 * n_steps).backward()
        clip_norm([*(p.grad for p in self.parameters), weight.grad, bias.grad], 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for optimizer, tensor in zip(self.rows, (weight, bias), strict=True):
            optimizer.update(rows.words, tensor.grad, 0.2)
        return batch.index.shape[1]


def build_learner(config: PretrainConfig, n_words: int, *, streams: bool) -> BiLmLearner:
    torch.manual_seed(0)
    dim = config.model.lstm.projection_dim
    weight = torch.randn(n_words, dim) * dim**-0.5
    n_streams = DATA.n_streams if streams else 0
    bilm, bias = BiLm(config.model), torch.zeros(n_words)
    recipe = Recipe(OBJECTIVE, "adagrad", Clipping(norm=10.0))
    softmax = Softmax(weight, bias)
    return BiLmLearner(bilm, softmax, recipe, None, World(), n_streams=n_streams)


def vocabulary_of(corpus: Corpus, n_words: int) -> Vocabulary:
    """The corpus's words and, where there are too few, made-up ones that only samples meet."""
    words = build_vocabulary(corpus.count_words(), n_words, 1).words
    return Vocabulary((*words, *(f"filler-{i}" for i in range(n_words - len(words)))))


def batches_of(layout, corpus: Corpus, vocabulary: Vocabulary, n: int) -> tuple[list, float]:
    """Some batches, and how long it takes to build one."""
    source = layout(Blocks.of(corpus), DATA, ByteCharacters(), vocabulary).batches({})
    next(source)
    start = time.perf_counter()
    batches = [batch for batch, _ in islice(source, n)]
    return batches, (time.perf_counter() - start) / n


def rate(learn, batches: list) -> float:
    learn(batches[0])
    start = time.perf_counter()
    n = sum(learn(batch) for batch in batches[1:])
    return n / (time.perf_counter() - start)


def show(name: str, value: float, unit: str, note: str = "") -> None:
    print(f"{name:<46}{value:>10,.0f} {unit}  {note}")


def compare(config: PretrainConfig, corpus: Corpus, steps: int, plain: bool) -> None:
    vocabulary = vocabulary_of(corpus, 50_000)
    streams, building = batches_of(Streams, corpus, vocabulary, steps + 1)
    segments, _ = batches_of(Segments, corpus, vocabulary, steps + 1)
    of_streams = build_learner(config, len(vocabulary), streams=True)
    of_segments = build_learner(config, len(vocabulary), streams=False)
    contestants = {
        "relmo, streams of 64 x 20": (lambda b: of_streams.learn(b, 0.2).n_tokens, streams),
        "relmo, segments, 1,280 tokens a batch": (
            lambda b: of_segments.learn(b, 0.2).n_tokens,
            segments,
        ),
    }
    if plain:
        trainer = PlainTrainer(config, len(vocabulary))
        contestants = {"plain PyTorch, streams": (trainer.learn, streams[:4]), **contestants}
    rates = dict.fromkeys(contestants, 0.0)
    for _ in range(ROUNDS):
        for name, (learn, batches) in contestants.items():
            rates[name] = max(rates[name], rate(learn, batches))
    reference = rates.get("plain PyTorch, streams")
    for name, found in rates.items():
        show(name, found, "words/s", f"{found / reference:.1f} x plain" if reference else "")
    seconds = 1280 / rates["relmo, streams of 64 x 20"]
    share = 100 * building / seconds
    print(f"building a batch takes {1e3 * building:.1f} ms, {share:.1f} % of a step")


def vary_vocabulary(config: PretrainConfig, corpus: Corpus, steps: int) -> None:
    learners, rates = {}, {}
    for n_words in (10_000, 100_000, 1_000_000):
        vocabulary = vocabulary_of(corpus, n_words)
        batches, _ = batches_of(Streams, corpus, vocabulary, steps + 1)
        learners[n_words] = build_learner(config, n_words, streams=True), batches
        rates[n_words] = 0.0
    for _ in range(ROUNDS):
        for n_words, (learner, batches) in learners.items():
            found = rate(lambda b, to=learner: to.learn(b, 0.2).n_tokens, batches)
            rates[n_words] = max(rates[n_words], found)
    for n_words, found in rates.items():
        note = f"{found / rates[10_000]:.2f} x that of 10,000"
        show(f"vocabulary of {n_words:,} words", found, "words/s", note)


def grow(texts: list[str]) -> None:
    """Peak memory and rate of `relmo pretrain --preset tiny` on text, and on ten times as much."""
    script = """
import re, sys
from pathlib import Path
from relmo.pretraining import pretrain
values = {"train.max_tokens": 400_000, "data.vocabulary_size": 20_000}
pretrain(sys.argv[1], sys.argv[3:], preset="tiny", values=values, cache=Path(sys.argv[2]))
status = Path("/proc/self/status").read_text()
print(*(re.search(rf"{name}:\\s+(\\d+)", status)[1] for name in ("VmHWM", "RssAnon")))
"""
    with tempfile.TemporaryDirectory() as folder:
        for number, share in enumerate((texts[: max(1, len(texts) // 10)], texts)):
            run = [sys.executable, "-c", script]
            places = [f"{folder}/run-{number}", f"{folder}/cache"]
            done = subprocess.run(
                [*run, *places, *share], capture_output=True, text=True, check=True
            )
            peak, anonymous = (int(n) / 1024 for n in done.stdout.split()[-2:])
            card = json.loads(Path(places[0], "model", "config.json").read_text())["facts"]
            rows = Path(places[0], "metrics.jsonl").read_text().splitlines()
            speed = [json.loads(row)["words_per_s"] for row in rows][len(rows) // 2 : -1]
            waiting = [json.loads(row)["waiting"] for row in rows][1:-1]
            print(
                f"{card['tokens']:<32} peak {peak:,.0f} MB, anonymous {anonymous:,.0f} MB; "
                f"{sum(speed) / len(speed):,.0f} words/s, "
                f"{100 * sum(waiting) / len(waiting):.2f} % of the time waiting for data"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small")
    parser.add_argument("--text", nargs="+", help="prose; Python's own documentation by default")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--grow", nargs="+", metavar="TEXT")
    arguments = parser.parse_args()
    if arguments.grow:
        return grow(arguments.grow)
    config = read_preset(arguments.size)
    with tempfile.TemporaryDirectory() as folder:
        texts = arguments.text
        if texts is None:
            topics = pydoc_data.topics.topics.values()
            path = Path(folder, "topics.txt")
            path.write_text("\n\n".join(re.sub(r"\n(?=\n)", "", topic) for topic in topics) * 4)
            texts = [str(path)]
        corpus = prepare_corpus(
            texts, tokenizer="words", lines=False, language="en", cache=Path(folder, "cache")
        )
        print(
            f"{arguments.size}; torch {torch.__version__}, {torch.get_num_threads()} threads, "
            f"{kernels.description}; {corpus.n_tokens:,} tokens of text"
        )
        compare(config, corpus, arguments.steps, plain=arguments.size != "original")
        if arguments.size == "small":
            vary_vocabulary(config, corpus, arguments.steps)
            for n_steps in (arguments.steps, 2 * arguments.steps, 4 * arguments.steps):
                vocabulary = vocabulary_of(corpus, 50_000)
                batches, _ = batches_of(Streams, corpus, vocabulary, n_steps + 1)
                learner = build_learner(config, len(vocabulary), streams=True)
                found = rate(lambda b, to=learner: to.learn(b, 0.2).n_tokens, batches)
                show(f"{n_steps} steps in a row", found, "words/s")
    return None


if __name__ == "__main__":
    main()
