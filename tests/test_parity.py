"""The same numbers as the programs that made the reference models."""

import json
from functools import partial

import h5py
import numpy as np
import pytest
import reference
from conftest import close

import relmo


@pytest.mark.parametrize(
    ("folder", "sentences"),
    [("bilm-tf", "lm_embeddings_sentences.json"), ("allennlp", "sentences.json")],
)
def test_top_layer_over_ten_stateful_batches(elmo_fixtures, folder, sentences):
    files = json.loads((elmo_fixtures / folder / sentences).read_text())
    model = relmo.load(elmo_fixtures / folder)
    with model.stateful() as stream:
        for i in range(10):
            found = stream.embed([file[i].split() for file in files], layers="top")
            for k, vectors in enumerate(found):
                with h5py.File(elmo_fixtures / folder / f"lm_embeddings_{k}.hdf5") as gold:
                    forward, backward = gold[str(i)][()]
                assert close(vectors, np.concatenate([forward, backward], axis=1))


def test_token_encoder(elmo_fixtures):
    folder = elmo_fixtures / "allennlp"
    model = relmo.load(folder)
    words = (folder / "vocab_test.txt").read_text().split("\n")
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as gold:
        expected = gold["embedding"][()]
    found = model.embed([[word] for word in words], layers=0)
    for word, vector, gold_vector in zip(words, found, expected, strict=True):
        assert close(vector[0], np.concatenate([gold_vector, gold_vector])), word


def test_many_langs_all_layers(elmo_fixtures):
    folder = elmo_fixtures / "many-langs-tiny"
    sentences = json.loads((folder / "sentences.json").read_text())
    found = relmo.load(folder).embed(sentences, layers="all")
    assert len(found) == len(sentences) == 5
    with h5py.File(folder / "expected_stateless.hdf5") as gold:
        for i, vectors in enumerate(found):
            assert close(vectors, gold[str(i)][()])


def test_multilingual_models_of_allennlp(elmo_fixtures):
    for language in ("es", "fr", "it"):
        folder = elmo_fixtures / "allennlp-0.9.0-wheel" / "elmo_multilingual" / language
        model = relmo.load(options=folder / "options.json", weights=folder / "weights.hdf5")
        found = model.embed([["una", "prueba"]], layers="all")[0]
        options = json.loads((folder / "options.json").read_text())
        with h5py.File(folder / "weights.hdf5") as file:
            tensors = {}
            file.visititems(partial(read_into, tensors))
        expected, _ = reference.layers(options, tensors, ["una", "prueba"])
        assert found.shape == expected.shape == (3, 2, 32)
        assert close(found, expected)


def read_into(tensors, name, node):
    if isinstance(node, h5py.Dataset):
        tensors[name] = node[()]
