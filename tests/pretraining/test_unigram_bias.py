"""A softmax that begins by knowing how frequent words are."""

import torch

from relmo.pretraining.job import unigram_bias
from relmo.text.vocabulary import SPECIAL, Vocabulary


def test_shares_of_what_is_predicted():
    counts = {"a": 6, "b": 2, "rare": 1, "rarer": 1}
    bias = unigram_bias(Vocabulary((*SPECIAL, "a", "b")), counts, n_sentences=4)
    shares = torch.tensor([2, 2, 2, 6, 2]) / 14  # <S> backward, </S> forward, <UNK>, a, b
    torch.testing.assert_close(bias.exp(), shares)


def test_words_that_the_text_lacks_keep_a_chance():
    bias = unigram_bias(Vocabulary((*SPECIAL, "a", "never")), {"a": 5}, n_sentences=2)
    assert torch.isfinite(bias).all()
    assert bias[4] < bias[3]
