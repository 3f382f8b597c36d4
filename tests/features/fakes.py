"""Features whose vectors are known: numbers made of hashes of words and sentences."""

import hashlib
import json

import numpy as np
import torch

from relmo.features.layers import Layers


def numbers(dim, *key):
    """(dim,) numbers that depend on the key alone."""
    seed = int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(dim).astype(np.float32)


class FakeFeatures:
    """Layer 0 depends on the word, the others on the sentence and the place in it.

    Attributes:
        n_computed: sentences that vectors were asked for.
        before_batch: called before each batch.
    """

    def __init__(self, identity="fake", n_layers=3, dim=6, scale=1.0):
        self.name, self.identity, self.n_layers, self.dim = "fake", identity, n_layers, dim
        self.scale, self.n_computed, self.before_batch = scale, 0, lambda: None

    def sentence(self, tokens, boundaries):
        """(K, n, D) of a sentence."""
        bounded = ["<S>", *tokens, "</S>"]
        rows = [
            [
                numbers(self.dim, self.identity, layer, word)
                if self._is_first(layer)
                else numbers(self.dim, self.identity, layer, bounded, place)
                for place, word in enumerate(bounded)
            ]
            for layer in range(self.n_layers)
        ]
        vectors = np.array(rows, dtype=np.float32) * np.float32(self.scale)
        return vectors if boundaries else vectors[:, 1:-1]

    def _is_first(self, layer):
        return layer == 0 and self.n_layers > 1

    def batch(self, sentences, *, boundaries=False):
        self.before_batch()
        self.n_computed += len(sentences)
        found = [self.sentence(tokens, boundaries) for tokens in sentences]
        longest = max((x.shape[1] for x in found), default=0)
        values = torch.zeros(self.n_layers, len(found), longest, self.dim)
        mask = torch.zeros(len(found), longest, dtype=torch.bool)
        for i, x in enumerate(found):
            values[:, i, : x.shape[1]] = torch.from_numpy(x)
            mask[i, : x.shape[1]] = True
        return Layers(values, mask)


SENTENCES = [
    ["the", "cat", "sat", "on", "the", "mat"],
    ["a", "dog"],
    [],
    ["<S>", "is", "a", "word", "here"],
    ["odd", "", "\0", '"', "\\", ",", "\ud83d", "🙂"],
    ["the"],
    ["the", "cat", "sat", "on", "the", "chair"],
    ["a", "b"],
    ["a b"],
]
