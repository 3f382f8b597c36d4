r"""What a model's vectors are worth: the probe of parts of speech, beside what is easier to have.

    python benchmarks/probe_baselines.py -m my-run/model --static glove/ --text novels/ \
        --train train.conllu --dev dev.conllu --test test.conllu

Beside the model: an untrained network of its shape; static vectors (GloVe and the like) if given;
and fastText vectors, trained here on TEXT by gensim, on the words that the model's tokenizer finds,
where words that are not in TEXT get the vectors of their parts. With several threads gensim's
vectors differ a little from run to run: --threads 1 gives the same ones again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does

import numpy as np
import torch

from relmo.analysis.probes import ProbeResult, probe_tags
from relmo.errors import ConfigError, RelmoError
from relmo.features.layers import Features
from relmo.features.live import FunctionFeatures, LiveFeatures
from relmo.features.static import StaticVectors
from relmo.formats import ModelContents, read_model
from relmo.formats.published import cache_directory
from relmo.inference.model import Model
from relmo.model.bilm import BiLm
from relmo.text.conllu import read_conllu
from relmo.text.corpus import find_texts
from relmo.text.shards import Corpus, prepare_corpus

N_BUCKETS = 500_000  # that parts of words share: more than the novels of a library have


def untrained_features(contents: ModelContents, seed: int) -> Features:
    """Layers of a network of the model's shape, as it was before it was trained."""
    torch.manual_seed(seed)
    tensors = BiLm(contents.config).state_dict()
    return LiveFeatures(Model(replace(contents, tensors=tensors, remainders={})), "untrained")


def write_sentences(corpus: Corpus, path: Path) -> None:
    """One sentence per line, its words between spaces."""
    with path.open("w", encoding="utf-8") as file:
        for shard in corpus.shards:
            words = np.array([word.replace(" ", "_") for word in shard.words], dtype=object)
            for start, end in zip(np.append(0, shard.ends[:-1]), shard.ends, strict=True):
                file.write(" ".join(words[shard.ids[start:end]]) + "\n")


def fasttext_features(tokenizer: str, options: argparse.Namespace) -> Features:
    """Vectors of words and of their parts, by skip-gram."""
    from gensim.models import FastText

    corpus = prepare_corpus(
        find_texts(options.text),
        tokenizer=tokenizer,
        lines=options.lines,
        language=options.language,
        cache=cache_directory() / "corpora",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sentences.txt")
        write_sentences(corpus, path)
        started = time.monotonic()
        vectors = FastText(
            corpus_file=str(path),
            sg=1,
            vector_size=options.dim,
            epochs=options.fasttext_epochs,
            min_count=options.min_count,
            bucket=N_BUCKETS,
            workers=options.threads,
            seed=options.seed,
        ).wv
    minutes = (time.monotonic() - started) / 60
    if options.save:
        vectors.save_word2vec_format(str(options.save))
    print(
        f"fastText: {len(vectors):,} words of {corpus.n_tokens:,} tokens, {minutes:.1f} minutes",
        file=sys.stderr,
    )

    def embed(sentences: list[tuple[str, ...]]) -> list[np.ndarray]:
        return [np.stack([vectors[token] for token in tokens])[None] for tokens in sentences]

    identity = hashlib.blake2b(vectors.vectors.tobytes(), digest_size=16).hexdigest()
    return FunctionFeatures("fastText", identity, 1, options.dim, embed)


def show(name: str, result: ProbeResult) -> None:
    for kind, dev, test in zip(result.names, result.dev, result.test, strict=True):
        best = "  best on dev" if len(result.names) > 1 and kind == result.best else ""
        print(f"{name:<26}{kind:<14}{dev:>8.2f}{test:>8.2f}{best}", flush=True)
        name = ""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for part in ("train", "dev", "test"):
        parser.add_argument(f"--{part}", required=True, metavar="FILE", help="CoNLL-U")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--static", action="append", default=[], help="vectors; may be repeated")
    parser.add_argument("--text", nargs="+", help="for fastText: files, directories, patterns")
    parser.add_argument("--lines", action="store_true", help="the text has one sentence per line")
    parser.add_argument("--language", default="en", help="of prose")
    parser.add_argument("--dim", type=int, default=300, help="of fastText's vectors")
    parser.add_argument("--fasttext-epochs", type=int, default=5)
    parser.add_argument("--min-count", type=int, default=5, help="rarer words are their parts only")
    parser.add_argument("--save", type=Path, help="a file to keep fastText's vectors in, as text")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of fastText")
    parser.add_argument("--epochs", type=int, default=8, help="of the probe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file to keep the results in")
    return parser.parse_args()


def compare(options: argparse.Namespace) -> None:
    if options.text and not find_spec("gensim"):
        raise ConfigError(
            "fastText needs the package gensim, which is not installed. Install it with: "
            "pip install 'relmo[dev]', or leave --text out."
        )
    parts = [list(read_conllu(path)) for path in (options.train, options.dev, options.test)]
    results: dict[str, ProbeResult] = {}

    def judge(name: str, features: Features) -> None:
        named = {"epochs": options.epochs, "seed": options.seed}
        results[name] = probe_tags([features], *parts, **named)
        show(name, results[name])

    contents = read_model(options.model)
    print(f"{'':<40}{'dev':>8}{'test':>8}")
    judge("model", LiveFeatures(Model(contents)))
    judge("untrained", untrained_features(contents, options.seed))
    for path in options.static:
        judge(Path(path).name, StaticVectors.load(path))
    if options.text:
        judge("fastText", fasttext_features(contents.config.tokenizer, options))
    if options.json:
        found = {name: result.as_dict() for name, result in results.items()}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        compare(parse_options())
    except RelmoError as error:
        sys.exit(str(error))
