"""How well groups of occurrences agree with the senses that people gave them, in SemCor.

    python benchmarks/senses.py SEMCOR -m MODEL          a folder with brown1/ and brown2/
    python benchmarks/senses.py SEMCOR -m MODEL --words 382 --json

For every word form with at least 40 occurrences and two senses (WordNet's) of at least 5 each, none
above 80 %, the occurrences are grouped as `relmo senses` does, by each layer and by the average.
Agreement is the adjusted Rand index (0: chance, 100: the same groups), with the number of groups
chosen and with that of the senses given. The reference, in the same run: the same grouping of the
mean of the token encoder's vectors over the rest of the sentence, which knows no order.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

import relmo
from relmo.analysis.groups import group, level, reduce

MIN_OCCURRENCES, MIN_OF_SENSE, MAX_SHARE = 40, 5, 0.8
ELEMENT = re.compile(r"<wf ([^>]*)>([^<]*)</wf>|<punc>([^<]*)</punc>|(</s>)")


def read_semcor(folder):
    """Sentences as tokens and senses, None where there is none; names and phrases have none."""
    for path in sorted(Path(folder).glob("brown[12]/tagfiles/*")):
        tokens, senses = [], []
        for attributes, words, mark, end in ELEMENT.findall(path.read_text("latin-1")):
            if end:
                yield tokens, senses
                tokens, senses = [], []
                continue
            values = dict(pair.split("=", 1) for pair in attributes.split() if "=" in pair)
            parts = [mark] if mark else words.split("_")
            tagged = len(parts) == 1 and "lexsn" in values and "pn" not in values
            sense = f"{values['lemma']}%{values['lexsn']}" if tagged else None
            tokens += parts
            senses += [sense] * len(parts)


def ambiguous_words(sentences):
    """Word to its occurrences (sentence, place, sense), of senses that are frequent enough."""
    found = defaultdict(list)
    for number, (tokens, senses) in enumerate(sentences):
        for place, (token, sense) in enumerate(zip(tokens, senses, strict=True)):
            if sense:
                found[token.lower()].append((number, place, sense))
    chosen = {}
    for word, occurrences in sorted(found.items()):
        counts = Counter(sense for *_, sense in occurrences)
        kept = [o for o in occurrences if counts[o[2]] >= MIN_OF_SENSE]
        n_senses = len({sense for *_, sense in kept})
        enough = len(kept) >= MIN_OCCURRENCES and n_senses > 1
        if enough and max(counts.values()) <= MAX_SHARE * len(kept):
            chosen[word] = kept
    return chosen


def embed(model, sentences, words):
    """Word, vectors (kinds, N, 2P), and whether each begins its sentence.

    Kinds: the layers, their average, and the reference.
    """
    needed = sorted({number for some in words.values() for number, *_ in some})
    layers = dict(
        zip(needed, model.embed((sentences[n][0] for n in needed), layers="all"), strict=True)
    )
    for word, occurrences in words.items():
        rows, first = [], []
        for number, place, _ in occurrences:
            x = layers[number]  # (L+1, tokens, 2P)
            others = np.delete(x[0], place, axis=0)
            context = others.mean(axis=0) if len(others) else np.zeros_like(x[0, 0])
            rows.append([*x[1:, place], x[1:, place].mean(axis=0), context])
            before = " ".join(sentences[number][0][:place])
            first.append(not any(map(str.isalnum, before)))
        yield word, np.swapaxes(np.array(rows), 0, 1), np.array(first)


def measure(model, sentences, words):
    kinds = [*(f"layer {n}" for n in range(1, model.config.n_outputs)), "average", "other words"]
    scores = {kind: {"chosen": [], "given": [], "n": []} for kind in kinds}
    for word, vectors, first in embed(model, sentences, words):
        senses = [sense for *_, sense in words[word]]
        for kind, x in zip(kinds, vectors, strict=True):
            reduced = reduce(level(x, first))
            chosen, given = group(reduced), group(reduced, len(set(senses)))
            scores[kind]["chosen"].append(adjusted_rand_score(senses, chosen))
            scores[kind]["given"].append(adjusted_rand_score(senses, given))
            scores[kind]["n"].append(int(chosen.max()) + 1)
    return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("semcor")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--words", type=int, default=100, help="of all, so many at equal distances")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sentences = list(read_semcor(options.semcor))
    words = ambiguous_words(sentences)
    kept = np.linspace(0, len(words) - 1, min(options.words, len(words))).astype(int)
    words = {word: words[word] for word in np.array(list(words))[kept]}
    scores = measure(relmo.load(options.model), sentences, words)
    table = {
        kind: {
            "ari_chosen": round(100 * float(np.mean(by["chosen"])), 1),
            "ari_given": round(100 * float(np.mean(by["given"])), 1),
            "mean_groups": round(float(np.mean(by["n"])), 2),
            "one_group": round(100 * float(np.mean(np.equal(by["n"], 1))), 1),
        }
        for kind, by in scores.items()
    }
    n_senses = np.mean([len({sense for *_, sense in some}) for some in words.values()])
    facts = {"words": len(words), "mean_senses": round(float(n_senses), 2), "kinds": table}
    if options.json:
        print(json.dumps(facts))
        return
    print(f"{len(words)} words of {n_senses:.2f} senses")
    print(f"{'':<14}{'ARI':>8}{'ARI, n given':>14}{'groups':>8}{'% one':>8}")
    for kind, by in table.items():
        print(
            f"{kind:<14}{by['ari_chosen']:>8}{by['ari_given']:>14}"
            f"{by['mean_groups']:>8}{by['one_group']:>8}"
        )


if __name__ == "__main__":
    main()
