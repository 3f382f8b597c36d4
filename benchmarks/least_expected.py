"""Which measure finds the wrong word of a sentence?

    python benchmarks/least_expected.py MODEL TEXT...

takes sentences that the model has not seen, puts another word of about the same frequency in the
place of one word of each, and counts how often a measure finds that word least expected of all, or
among the three least expected ones. `relmo score --least` marks words by the measure that is best
here.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import torch

from relmo.formats import read_model
from relmo.inference.model import Model
from relmo.text.corpus import find_texts
from relmo.text.sentences import read_sentences
from relmo.text.tokenize import build_tokenizer


def corrupt(sentences, vocabulary, n, rng):
    """So many sentences with one wrong word each, and its place."""
    is_word = [word.isalpha() for word in vocabulary.words]
    for tokens in sentences:
        if not 8 <= len(tokens) <= 40:
            continue
        numbers = [vocabulary.numbers.get(token) for token in tokens]
        places = [i for i, number in enumerate(numbers) if number is not None and is_word[number]]
        if None in numbers or not places:
            continue
        place = int(rng.choice(places))
        number, capital = numbers[place], tokens[place][0].isupper()
        around = max(20, number // 5)  # words by falling frequency
        like = [
            i
            for i in range(max(3, number - around), min(len(is_word), number + around))
            if i != number and is_word[i] and vocabulary.words[i][0].isupper() == capital
        ]
        if like:
            wrong = vocabulary.words[int(rng.choice(like))]
            yield (*tokens[:place], wrong, *tokens[place + 1 :]), place
            n -= 1
            if not n:
                return


def measures(scored, prior):
    """What each measure says of every token (n,): low is unexpected."""
    forward, backward = scored.forward[:-1], scored.backward[:-1]
    return {
        "log p forward + log p backward": forward + backward,
        "the lower of both": np.minimum(forward, backward),
        "their sum - log p(word)": forward + backward - prior,
        "their sum - 2 log p(word)": forward + backward - 2 * prior,
        "log p given both sides": scored.fit + prior,
        "the same - log p(word), relmo's": scored.fit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    contents = read_model(arguments.model)
    scorer = Model(contents)
    tokenize = build_tokenizer(scorer.tokenizer)
    texts = [s for t in find_texts(arguments.text) for s in read_sentences(t, lines=False)]
    rng = np.random.default_rng(arguments.seed)
    shuffled = ([t.text for t in tokenize(texts[i])] for i in rng.permutation(len(texts)))
    wrong = list(corrupt(shuffled, scorer.vocabulary, arguments.sentences, rng))
    priors = torch.log_softmax(contents.softmax.bias.float(), dim=0).numpy()
    ranks, chance = defaultdict(list), []
    scored = scorer.score([tokens for tokens, _ in wrong], fit=True)
    for sentence, (tokens, place) in zip(scored, wrong, strict=True):
        prior = priors[[scorer.vocabulary.number(token) for token in tokens]]
        for name, values in measures(sentence, prior).items():
            ranks[name].append(int((values < values[place]).sum()))
        chance.append([1 / len(tokens), 3 / len(tokens)])
    print(f"{len(wrong):,} sentences, one wrong word in each")
    print(f"{'the wrong word is, %':<36}{'the least':>12}{'of three':>12}")
    rows = {"chance": np.mean(chance, axis=0)}
    for name, found in ranks.items():
        rows[name] = [np.mean(np.array(found) < k) for k in (1, 3)]
    for name, (least, of_three) in rows.items():
        print(f"{name:<36}{100 * least:>12.1f}{100 * of_three:>12.1f}")


if __name__ == "__main__":
    main()
