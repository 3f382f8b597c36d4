"""What is remembered of tokens, and for how long."""

import torch

from relmo.vectors.token_cache import TokenCache


class Encoder:
    def __init__(self):
        self.asked = []

    def __call__(self, tokens):
        self.asked.append(tokens)
        return torch.tensor([[float(len(t)), float(ord(t[0]))] for t in tokens])


def expected(tokens):
    return Encoder()(tokens)


def test_each_token_is_encoded_once():
    cache, encode = TokenCache(10), Encoder()
    assert torch.equal(cache.vectors(["a", "bb"], encode, 0), expected(["a", "bb"]))
    assert torch.equal(cache.vectors(["bb", "c", "a"], encode, 0), expected(["bb", "c", "a"]))
    assert torch.equal(cache.vectors(["a", "c"], encode, 0), expected(["a", "c"]))
    assert encode.asked == [["a", "bb"], ["c"]]


def test_the_longest_unused_is_forgotten_first():
    cache, encode = TokenCache(2), Encoder()
    for tokens in (["a"], ["b"], ["a"], ["c"]):
        assert torch.equal(cache.vectors(tokens, encode, 0), expected(tokens))
    encode.asked.clear()
    cache.vectors(["a", "c"], encode, 0)
    assert encode.asked == []
    cache.vectors(["b"], encode, 0)
    assert encode.asked == [["b"]]


def test_more_tokens_than_it_holds():
    cache, encode = TokenCache(3), Encoder()
    tokens = [chr(97 + i) for i in range(9)]
    for _ in range(3):
        assert torch.equal(cache.vectors(tokens, encode, 0), expected(tokens))
        assert len(cache) == 3


def test_new_weights_forget_everything():
    cache, encode = TokenCache(10), Encoder()
    cache.vectors(["a"], encode, "old")
    cache.vectors(["a"], encode, "new")
    assert encode.asked == [["a"], ["a"]]
