"""What is remembered of tokens, and for how long."""

import numpy as np
import torch

from relmo.inference.token_cache import TokenCache
from relmo.text.characters import ByteCharacters, TokenIds
from relmo.text.lexicon import LexiconCharacters, build_lexicon

SCHEME = ByteCharacters(6)


def ids(tokens):
    return SCHEME.encode(tokens)


class Encoder:
    """Encodes a token as its characters; remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, ids):
        self.asked.append(len(ids.characters))
        return torch.from_numpy(ids.characters).float()


def expected(tokens):
    return Encoder()(ids(tokens))


def test_each_token_is_encoded_once():
    cache, encode = TokenCache(10), Encoder()
    for tokens in (["a", "bb"], ["bb", "c", "a"], ["a", "c"]):
        assert torch.equal(cache.vectors(ids(tokens), encode, 0), expected(tokens))
    assert encode.asked == [2, 1]


def test_the_longest_unused_is_forgotten_first():
    cache, encode = TokenCache(2), Encoder()
    for tokens in (["a"], ["b"], ["a"], ["c"]):
        assert torch.equal(cache.vectors(ids(tokens), encode, 0), expected(tokens))
    encode.asked.clear()
    cache.vectors(ids(["a", "c"]), encode, 0)
    assert encode.asked == []
    cache.vectors(ids(["b"]), encode, 0)
    assert encode.asked == [1]


def test_more_tokens_than_it_holds():
    cache, encode = TokenCache(3), Encoder()
    tokens = [chr(97 + i) for i in range(9)]
    for _ in range(3):
        assert torch.equal(cache.vectors(ids(tokens), encode, 0), expected(tokens))
        assert len(cache) == 3


def test_new_weights_forget_everything():
    cache, encode = TokenCache(10), Encoder()
    cache.vectors(ids(["a"]), encode, "old")
    cache.vectors(ids(["a"]), encode, "new")
    assert encode.asked == [1, 1]


def test_tokens_that_are_cut_to_the_same_characters_share_a_place():
    cache, encode = TokenCache(10), Encoder()
    tokens = ["abcdX", "abcdY", "abcdZ", "q"]  # cut to four bytes
    assert torch.equal(cache.vectors(ids(tokens), encode, 0), expected(tokens))
    assert len(cache) == 2
    encode.asked.clear()
    for more in (["r", "s"], tokens, ["q", "r", "s"]):
        assert torch.equal(cache.vectors(ids(more), encode, 0), expected(more))
    assert encode.asked == [2]


def test_words_and_characters_count():
    scheme = LexiconCharacters(build_lexicon({"ab": 2, "ac": 1}, 20, 9), 6)
    found = scheme.encode(["ab", "ac"])
    same_characters = TokenIds(found.characters[[0, 0]], found.words)
    same_words = TokenIds(found.characters, found.words[[0, 0]])
    words_only = TokenIds(None, found.words)
    for some in (same_characters, same_words, words_only):
        cache = TokenCache(10)
        cache.vectors(some, lambda asked: torch.zeros(len(asked.words), 1), 0)
        assert len(cache) == 2
    assert np.array_equal(same_words.words, found.words[[0, 0]])
