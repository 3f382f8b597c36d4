"""Do occurrences of an ambiguous word retrieve their own sense?

    python benchmarks/sense_retrieval.py MODEL SEMCOR [--static VECTORS]

For each of some lemmas of SemCor that are used in more than one sense, every occurrence looks for
the nearest other one, by cosine, among those of other sentences: how often does that have the same
sense? Beside the layers of MODEL stand chance (what another occurrence, drawn at random, would
give) and static vectors: of the word itself, and averaged over its sentence. Where several are
equally near, as they are to a vector that knows no context, the share among these counts.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relmo.analysis.kinds import Kinds, contexts_of
from relmo.features.live import open_features

TAG = re.compile(r"<(/?s|wf|punc)\b([^>]*)>([^<\n]*)")
ATTRIBUTE = re.compile(r"(\w+)=(\S+)")
PARTS_OF_SPEECH = {"1": "noun", "2": "verb", "3": "adjective", "4": "adverb", "5": "adjective"}
CHUNK_SENTENCES = 256


@dataclass(frozen=True)
class Occurrence:
    """Where a lemma is, and in which sense."""

    sentence: int
    place: int
    sense: str


def read_semcor(folder: Path):
    """Sentences of tokens, and the occurrences of each lemma and part of speech."""
    files = sorted(folder.glob("brown[12]/tagfiles/*"))
    if not files:
        raise SystemExit(f"{folder} holds no brown1/tagfiles: give the directory of SemCor.")
    sentences, occurrences = [], defaultdict(list)
    for file in files:
        tokens = []
        for kind, attributes, text in TAG.findall(file.read_text(encoding="latin-1")):
            if kind == "/s":
                sentences.append(tuple(tokens))
                tokens = []
            tagged = dict(ATTRIBUTE.findall(attributes)) if kind == "wf" else {}
            words = text.split("_") if text else []
            sense = tagged.get("lexsn", "")
            # One word, one sense: neither `took_place` nor a choice between two senses.
            if len(words) == 1 and ";" not in sense and sense[:1] in PARTS_OF_SPEECH:
                lemma = f"{tagged['lemma']} ({PARTS_OF_SPEECH[sense[0]]})"
                occurrences[lemma].append(Occurrence(len(sentences), len(tokens), sense))
            tokens += words
    return sentences, occurrences


def choose(occurrences, n_lemmas, n_occurrences, rng):
    """Lemmas with at least two senses that occur at least twice each, and a sample of each."""
    ambiguous = sorted(
        lemma
        for lemma, found in occurrences.items()
        if sum(n > 1 for n in Counter(o.sense for o in found).values()) > 1 and len(found) >= 10
    )
    lemmas = rng.permutation(ambiguous)[:n_lemmas].tolist()
    sample = {}
    for lemma in lemmas:
        found = occurrences[lemma]
        numbers = np.sort(rng.permutation(len(found))[:n_occurrences])
        sample[lemma] = [found[i] for i in numbers]
    return sample


def vectors_at(kinds, sentences, sample):
    """For each lemma, one array (occurrences, D_k) for each kind of vector."""
    wanted = sorted({o.sentence for some in sample.values() for o in some})
    places = defaultdict(list)
    for lemma, some in sample.items():
        for number, occurrence in enumerate(some):
            places[occurrence.sentence].append((lemma, number, occurrence.place))
    found = {lemma: [None] * len(some) for lemma, some in sample.items()}
    for start in range(0, len(wanted), CHUNK_SENTENCES):
        chunk = wanted[start : start + CHUNK_SENTENCES]
        batches = [f.batch([sentences[i] for i in chunk], boundaries=True) for f in kinds.features]
        values = [batch.without_boundaries().values for batch in batches]
        views = kinds.views(values, [contexts_of(batch) for batch in batches])
        for row, number in enumerate(chunk):
            for lemma, at, place in places[number]:
                found[lemma][at] = [view[row, place].numpy().copy() for view in views]
    return {
        lemma: [np.stack(vectors) for vectors in zip(*rows, strict=True)]
        for lemma, rows in found.items()
    }


def shares(vectors, some):
    """For each occurrence, chance and how far the nearest by each kind has the same sense."""
    senses, at = (np.array([getattr(o, name) for o in some]) for name in ("sense", "sentence"))
    others = at[:, None] != at
    same = (senses[:, None] == senses) & others
    keep = others.any(axis=1)
    columns = [same.sum(axis=1) / np.maximum(others.sum(axis=1), 1)]
    for x in vectors:
        x = x.astype(np.float64)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        cosines = np.where(others, np.round(x @ x.T, 6), -2)
        nearest = (cosines == cosines.max(axis=1, keepdims=True)) & others
        columns.append((nearest & same).sum(axis=1) / np.maximum(nearest.sum(axis=1), 1))
    return np.stack(columns, axis=1)[keep]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("semcor", type=Path)
    parser.add_argument("--static")
    parser.add_argument("--lemmas", type=int, default=200)
    parser.add_argument("--occurrences", type=int, default=200, help="of a lemma, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sentences, occurrences = read_semcor(arguments.semcor)
    rng = np.random.default_rng(arguments.seed)
    sample = choose(occurrences, arguments.lemmas, arguments.occurrences, rng)
    kinds = Kinds(open_features(arguments.model, arguments.static), contexts=True)
    vectors = vectors_at(kinds, sentences, sample)
    by_lemma = [shares(vectors[lemma], some) for lemma, some in sample.items()]
    by_lemma = [found for found in by_lemma if len(found)]
    every = np.concatenate(by_lemma)
    print(f"{len(by_lemma)} lemmas, {len(every):,} occurrences")
    print("the nearest has the same sense, %    of occurrences    mean of lemmas")
    means = np.mean([found.mean(axis=0) for found in by_lemma], axis=0)
    for name, one, other in zip(("chance", *kinds.names), every.mean(axis=0), means, strict=True):
        print(f"{name:<33}{100 * one:>18.2f}{100 * other:>18.2f}")


if __name__ == "__main__":
    main()
