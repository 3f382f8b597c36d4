"""The oracle reproduces what the original programs computed, and the builders feed it."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import h5py
import legacy
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import rounding

FIXTURES = Path(__file__).parents[2] / "shared" / "data" / "elmo-fixtures"
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="the outputs of the original programs are not on this machine"
)


def read_hdf5(path):
    tensors = {}

    def visit(name, node):
        if isinstance(node, h5py.Dataset):
            tensors[name] = node[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return tensors


def read_pickle(path):
    return {name: value.numpy() for name, value in torch.load(path, weights_only=True).items()}


def read_many_langs(directory):
    char_dic = directory / "char.dic"
    return legacy.ManyLangs(
        json.loads((directory / legacy.ARCHITECTURE).read_text()),
        read_pickle(directory / "token_embedder.pkl"),
        read_pickle(directory / "encoder.pkl"),
        reference.read_dictionary(char_dic) if char_dic.exists() else {},
        reference.read_dictionary(directory / "word.dic"),
    )


@needs_fixtures
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("name", "sentences"),
    [("bilm-tf", "lm_embeddings_sentences.json"), ("allennlp", "sentences.json")],
)
def test_ten_stateful_batches_match_the_original(name, sentences, dtype):
    directory = FIXTURES / name
    options = json.loads((directory / "options.json").read_text())
    tensors = read_hdf5(directory / "lm_weights.hdf5")
    streams = json.loads((directory / sentences).read_text())
    assert [len(stream) for stream in streams] == [10, 10, 10]
    for k, stream in enumerate(streams):
        expected = read_hdf5(directory / f"lm_embeddings_{k}.hdf5")
        state = None
        for i, sentence in enumerate(stream):
            got, state = reference.layers(options, tensors, sentence.split(), state, dtype)
            assert got.dtype == dtype
            forward, backward = expected[str(i)]
            np.testing.assert_allclose(got[-1], np.hstack([forward, backward]), **TOLERANCE)


@needs_fixtures
def test_token_encoder_matches_the_original():
    directory = FIXTURES / "allennlp"
    options = json.loads((directory / "options.json").read_text())
    tensors = read_hdf5(directory / "lm_weights.hdf5")
    expected = read_hdf5(directory / "elmo_token_embeddings.hdf5")["embedding"]
    vocabulary = (directory / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    got = [reference.encode_token(options, tensors, token) for token in vocabulary]
    np.testing.assert_allclose(np.stack(got), expected, **TOLERANCE)


@needs_fixtures
def test_many_langs_matches_the_original():
    directory = FIXTURES / "many-langs-tiny"
    parts = read_many_langs(directory)
    expected = read_hdf5(directory / "expected_stateless.hdf5")
    sentences = json.loads((directory / "sentences.json").read_text())
    assert len(sentences) == len(expected) == 5
    for i, sentence in enumerate(sentences):
        got = reference.many_langs_layers(*parts, sentence)
        np.testing.assert_allclose(got, expected[str(i)], **TOLERANCE)


def test_character_ids():
    pad = [261] * 3
    assert reference.character_ids("a", 6).tolist() == [259, 98, 260, *pad]
    assert reference.character_ids("<S>", 6).tolist() == [259, 257, 260, *pad]
    assert reference.character_ids("</S>", 6).tolist() == [259, 258, 260, *pad]
    # The cut splits the second character: three bytes each, four fit.
    assert reference.character_ids("日本", 6).tolist() == [259, 231, 152, 166, 231, 260]
    assert reference.character_ids("x" * 99).shape == (50,)


@pytest.mark.parametrize("dim", [4, 7])
@pytest.mark.parametrize("direction", [0, 1])
def test_one_layer_without_clips_is_the_lstm_of_torch(dim, direction):
    rng = np.random.default_rng(dim)
    clips = {"cell_clip": None, "proj_clip": None}
    options = legacy.random_options(rng, n_layers=1, dim=dim, projection_dim=4, **clips)
    tensors = legacy.random_bilm_tf(rng, options)
    cell = {
        key: tensors.get(f"RNN_{direction}/RNN/LSTMCell/{key}") for key in ("W_0", "B", "W_P_0")
    }
    i, g, f, o = np.split(np.vstack([cell["W_0"], cell["B"]]).astype(np.float64), 4, axis=1)
    f[-1] += 1
    kernel = torch.from_numpy(np.hstack([i, f, g, o]).T)  # (4H, 2P + 1)
    lstm = torch.nn.LSTM(4, dim, proj_size=4 if dim != 4 else 0, dtype=torch.float64)
    state = {"weight_ih_l0": kernel[:, :4], "weight_hh_l0": kernel[:, 4:8]}
    state |= {"bias_ih_l0": kernel[:, 8], "bias_hh_l0": torch.zeros(4 * dim)}
    if dim != 4:
        state["weight_hr_l0"] = torch.from_numpy(cell["W_P_0"].T)
    lstm.load_state_dict(state)
    vectors, h, c = rng.normal(size=(9, 4)), rng.normal(size=4), rng.normal(size=dim)
    with torch.no_grad():
        expected, last = lstm(
            torch.from_numpy(vectors), (torch.from_numpy(h[None]), torch.from_numpy(c[None]))
        )
    got, [(got_h, got_c)] = reference.run_direction(options, tensors, direction, vectors, [(h, c)])
    np.testing.assert_allclose(got[0], expected.numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got_h, last[0][0].numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got_c, last[1][0].numpy(), rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(legacy.options_strategy(), st.integers(0, 99), st.lists(st.text(max_size=12), max_size=4))
def test_every_configuration_runs_and_carries_its_state(options, seed, sentence):
    tensors = legacy.random_bilm_tf(np.random.default_rng(seed), options)
    lstm = options["lstm"]
    P, L = lstm["projection_dim"], lstm["n_layers"]
    names = set(tensors)
    assert ("CNN_proj/W_proj" in names) == (sum(n for _, n in options["char_cnn"]["filters"]) != P)
    assert any("W_P_0" in name for name in names) == (lstm["dim"] != P)
    assert any("MultiRNNCell" in name for name in names) == (L > 1)
    got, state = reference.layers(options, tensors, sentence)
    assert got.shape == (L + 1, len(sentence), 2 * P)
    assert [[h.shape + c.shape for h, c in side] for side in state] == [[(P, lstm["dim"])] * L] * 2
    single, _ = reference.layers(options, tensors, sentence, dtype=np.float32)
    assert single.dtype == np.float32
    n_terms = 100 + L * (len(sentence) + 2) * (2 * P + lstm["dim"])  # 100 in the encoder, at most
    # Projections of random weights enlarge what comes in up to fourfold.
    atol = rounding(n_terms, scale=4 * max(1, np.abs(got).max(initial=0)))
    np.testing.assert_allclose(single, got, rtol=0, atol=atol)
    more, last = reference.layers(options, tensors, ["a", *sentence], state)
    tokens = ["<S>", *sentence, "</S>", "<S>", "a", *sentence, "</S>"]
    x = np.stack([reference.encode_token(options, tensors, token) for token in tokens])
    zeros, _ = reference.zero_state(options)
    stream, end = reference.run_direction(options, tensors, 0, x, zeros)  # (L, tokens, P)
    np.testing.assert_array_equal(more[1:, :, :P], stream[:, len(sentence) + 3 : -1])
    np.testing.assert_array_equal(np.hstack(last[0][-1]), np.hstack(end[-1]))


@pytest.mark.parametrize("clip", ["cell_clip", "proj_clip"])
def test_clips_bite_in_random_models(clip):
    sizes = {"n_layers": 2, "dim": 9, "projection_dim": 6, "cell_clip": 3, "proj_clip": 3}
    n_bitten = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        options = legacy.random_options(rng, **sizes)
        tensors = legacy.random_bilm_tf(rng, options)
        off = {**options, "lstm": {**options["lstm"], clip: None}}
        sentence = ["the", "cat", "sat", "on", "the", "mat"]
        clipped, free = (reference.layers(o, tensors, sentence)[0] for o in (options, off))
        n_bitten += not np.allclose(clipped, free, rtol=1e-3, atol=1e-3)
    assert n_bitten >= 5


def test_written_bilm_tf_files_hold_what_was_built(tmp_path):
    rng = np.random.default_rng(1)
    options = legacy.random_options(rng, n_layers=1, activation="tanh")
    assert options["char_cnn"]["activation"] == "tanh"
    tensors = legacy.random_bilm_tf(rng, options)
    softmax = legacy.normal(rng, 4, 3, scale=1), legacy.normal(rng, 4, scale=1)
    vocabulary = ["<S>", "</S>", "<UNK>", "日"]
    paths = legacy.write_bilm_tf(tmp_path, options, tensors, softmax=softmax, vocabulary=vocabulary)
    assert json.loads(paths[0].read_text()) == options
    assert_same(read_hdf5(paths[1]), tensors)
    expected = {"softmax/W": softmax[0], "softmax/b": softmax[1]}
    assert_same(read_hdf5(tmp_path / "softmax.hdf5"), expected)
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8").split() == vocabulary


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == np.float32
        np.testing.assert_array_equal(got[name], value)


@pytest.mark.parametrize("gz", [False, True])
def test_simple_elmo_zip_holds_what_was_built(tmp_path, gz):
    rng = np.random.default_rng(2)
    options = legacy.random_options(rng)
    tensors = legacy.random_bilm_tf(rng, options)
    legacy.write_simple_elmo_zip(tmp_path / "1.zip", options, tensors, ["<S>", "日"], gz=gz)
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert_same(read_hdf5(io.BytesIO(members["model.hdf5"])), tensors)
    assert json.loads(members["options.json"])["char_cnn"]["n_characters"] == 261
    text = gzip.decompress(members["vocab.txt.gz"]) if gz else members["vocab.txt"]
    assert text.decode() == "<S>\n日\n"
    assert len(members) == 3


@pytest.mark.parametrize("dims", [(5, 3), (0, 3), (5, 0)])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_many_langs_directory_holds_what_was_built(tmp_path, dims, n_layers):
    word_dim, char_dim = dims
    built = legacy.write_many_langs(
        tmp_path, np.random.default_rng(3), word_dim=word_dim, char_dim=char_dim, n_layers=n_layers
    )
    read = read_many_langs(tmp_path)
    assert_same(read.token_embedder, built.token_embedder)
    assert_same(read.encoder, built.encoder)
    assert (read.architecture, read.char_dic, read.word_dic) == (built[0], built[3], built[4])
    assert not Path(json.loads((tmp_path / "config.json").read_text())["config_path"]).exists()
    got = reference.many_langs_layers(*read, ["ab", "日", "zz", "\u3000", "\u2028", "zzz"])
    assert got.shape == (n_layers + 1, 6, 8)
    # Neither words nor filters up to width 2 tell two unknown characters from three.
    differs = [not np.array_equal(got[0, j], got[0, 2]) for j in range(6)]
    assert differs == [True, True, False, char_dim > 0, char_dim > 0, False]
