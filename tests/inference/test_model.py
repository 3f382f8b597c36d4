"""Embedding: shapes, places, layers, and that nothing but the sentence matters."""

import itertools
import random

import numpy as np
import pytest
import torch
from conftest import close
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tolerance import network_rounding, rounding

import relmo
from relmo.errors import ConfigError, DataError, FormatError
from relmo.inference import batching
from relmo.inference import model as model_module
from relmo.model import bilm as bilm_module
from relmo.text.characters import ByteCharacters

SENTENCES = st.lists(st.lists(st.sampled_from(["a", "b", "dd", "eee"]), max_size=9), max_size=8)
CALM = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("device", ["foo", "cuda:99", "mps:7", "meta", ""])
def test_devices_that_are_not_there(tiny_contents, device):
    for build in (
        lambda: relmo.load("nowhere", device=device),
        lambda: relmo.Model(tiny_contents, device=device),
    ):
        with pytest.raises(ConfigError, match=f"There is no device '{device}'.* has cpu") as raised:
            build()
        assert raised.value.settings == ("device",)


@pytest.mark.parametrize("sentences", [None, 3])
def test_what_is_no_text(tiny, sentences):
    with pytest.raises(DataError, match=f"Expected a string or sentences, found {sentences}"):
        tiny.embed(sentences)


def test_shapes_and_kinds(tiny):
    assert tiny.embed("a b c").shape == (3, 32)
    found = tiny.embed(["a b c", ["already", "split up"], ""])
    assert [v.shape for v in found] == [(3, 32), (2, 32), (0, 32)]
    assert all(v.dtype == np.float32 for v in found)
    assert [v.shape for v in tiny.embed(["a", ""], layers="all")] == [(3, 1, 32), (3, 0, 32)]
    assert tiny.embed([]) == []


def test_layers(tiny):
    everything = tiny.embed("a b c", layers="all")
    assert np.array_equal(tiny.embed("a b c", layers="top"), everything[2])
    assert np.array_equal(tiny.embed("a b c", layers=1), everything[1])
    assert np.array_equal(tiny.embed("a b c", layers=-1), everything[2])
    assert np.array_equal(tiny.embed("a b c", layers=[2, 0]), everything[[2, 0]])
    assert close(tiny.embed("a b c"), everything.mean(0))
    assert np.array_equal(everything[0, :, :16], everything[0, :, 16:])
    mix = relmo.ScalarMix(3, weights=[0.5, -1.0, 2.0], gamma=1.5, dropout=0.9)
    w = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    assert close(tiny.embed("a b c", layers=mix), 1.5 * np.tensordot(w, everything, 1))


def test_layer_norm_mix_is_over_the_sentence_alone(tiny):
    mix = relmo.ScalarMix(3, layer_norm=True)
    alone = tiny.embed("a b c", layers=mix)
    beside = tiny.embed(["a b c", "d e f g h"], layers=mix)[0]
    # Divided by the deviation, and summed over all 96 numbers of a layer for that.
    bound = network_rounding(tiny.config, 5) + rounding(96, scale=5)
    assert close(alone, beside, atol=bound)
    everything = tiny.embed("a b c", layers="all")
    normal = [(x - x.mean()) / np.sqrt(x.var() + 1e-13) for x in everything]
    assert close(alone, np.mean(normal, axis=0), atol=bound)


@pytest.mark.parametrize("layers", [True, "best", 3, -4, [], [0, 7], 1.5, None, "0", [True, "a"]])
def test_unknown_layers(tiny, layers):
    with pytest.raises(ConfigError, match="layers is"):
        tiny.embed("a", layers=layers)


def test_mix_of_another_size(tiny):
    with pytest.raises(ConfigError, match=r"ScalarMix\(3\)"):
        tiny.embed("a", layers=relmo.ScalarMix(2))


@pytest.mark.parametrize("sentence", [b"bytes", 7, None, ["a", 3], [b"a"], {"a": 1}])
def test_what_is_no_sentence(tiny, sentence):
    with pytest.raises(DataError, match="A sentence is a string, a list of strings"):
        tiny.embed([sentence])


@CALM
@given(SENTENCES, st.integers(2, 40), st.randoms(use_true_random=False))
def test_vectors_do_not_depend_on_company_order_or_batch_size(tiny, sentences, budget, rng):
    alone = [tiny.embed([s], layers="all")[0] for s in sentences]
    order = list(range(len(sentences)))
    rng.shuffle(order)
    together = tiny.embed([sentences[i] for i in order], layers="all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "BATCH_TOKENS", budget)
        in_small_batches = tiny.embed(sentences, layers="all")
    bound = network_rounding(tiny.config, 9)  # other sizes of products, other roundings
    for place, i in enumerate(order):
        assert close(together[place], alone[i], atol=bound)
        assert close(in_small_batches[i], alone[i], atol=bound)


def test_calling_twice_gives_the_same_bits(tiny, tiny_contents):
    sentences = ["a b c", "d e", "a"]
    first = tiny.embed(sentences, layers="all")
    tiny.embed(["something else between", "a b"])
    again = tiny.embed(sentences, layers="all")
    elsewhere = relmo.Model(tiny_contents).embed(sentences, layers="all")
    for one, two, three in zip(first, again, elsewhere, strict=True):
        assert np.array_equal(one, two)
        assert np.array_equal(one, three)


def test_a_frozen_network_gives_vectors_that_a_model_on_top_can_learn_from(tiny):
    tiny.bilm.requires_grad_(False)
    tiny.embed("a b c")  # fills the token cache in inference mode
    mix = relmo.ScalarMix(3)
    for sentences in (["a b c"], ["a b c d", "e"], ["e f"]):
        output = tiny.run(tiny.batch(sentences)).padded().without_boundaries()
        assert not output.layers.requires_grad
        mix(output.layers, output.mask).sum().backward()
        expected = tiny.embed(sentences, layers="all")
        for row, vectors in zip(output.layers.unbind(1), expected, strict=True):
            assert close(row[:, : vectors.shape[1]], vectors, atol=1e-5)
    assert mix.weights.grad.abs().max() > 0


def test_a_network_that_learns_gets_gradients(tiny):
    output = tiny.run(tiny.batch(["a b c"]))
    assert output.layers.requires_grad
    output.layers.sum().backward()
    assert all(p.grad is not None for p in tiny.bilm.encoder.projection.parameters())


def test_a_frozen_network_runs_in_two_threads_and_encodes_a_token_once(tiny, monkeypatch):
    tiny.bilm.requires_grad_(False)
    asked = []
    encode = tiny.bilm.encoder.forward
    monkeypatch.setattr(
        tiny.bilm.encoder, "forward", lambda ids: asked.append(len(ids.characters)) or encode(ids)
    )
    threads = []
    both = bilm_module.run_in_two_threads
    monkeypatch.setattr(
        bilm_module, "run_in_two_threads", lambda *calls: threads.append(1) or both(*calls)
    )
    assert torch.is_grad_enabled()
    for _ in range(2):
        tiny.run(tiny.batch(["a b", "b a"]))
    assert asked == [4]  # <S> a b </S>
    assert len(threads) >= 2


def test_character_ids_give_the_vectors_of_their_tokens(tiny):
    sentences = [["a", "bc"], ["d"]]
    ids = [ByteCharacters().encode(sentence).characters for sentence in sentences]
    for one, other in zip(tiny.embed(ids), tiny.embed(sentences), strict=True):
        assert close(one, other, atol=1e-5)


def test_the_fingerprint_is_that_of_the_weights(tiny, tiny_contents):
    before = tiny.fingerprint
    assert before == relmo.Model(tiny_contents, precision="int8").fingerprint
    with torch.no_grad():
        tiny.bilm.encoder.projection.bias.add_(1)
    assert tiny.fingerprint != before


def test_weights_of_another_precision(tiny):
    before = tiny.embed("a b", layers="all")
    tiny.bilm.double()
    after = tiny.embed("a b c", layers="all")  # the token cache starts anew
    assert after.dtype == np.float64
    assert close(tiny.embed("a b", layers="all"), before, atol=1e-5)


def test_under_autocast(tiny):
    exact = tiny.embed("a b", layers="all")
    with torch.autocast("cpu", torch.bfloat16):  # which is for CUDA alone
        output = tiny.bilm(tiny.batch(["a b"])).without_boundaries()
        assert np.array_equal(tiny.embed("a b", layers="all"), exact)
    assert close(output.layers[:, 0].detach(), exact, atol=1e-5)


def test_a_stateful_stream_takes_any_iterable(tiny):
    with tiny.stateful() as stream:
        found = stream.embed(iter(["a b", "c"]))
    assert [len(vectors) for vectors in found] == [2, 1]


def test_the_mean_of_the_lstm_layers(tiny):
    everything = tiny.embed("a b c", layers="all")
    assert close(tiny.embed("a b c", layers="lstm"), everything[1:].mean(axis=0), atol=1e-5)


def test_streams_are_read_as_they_are_used(tiny, monkeypatch):
    monkeypatch.setattr(model_module, "POOL_BYTES", 0)
    monkeypatch.setattr(model_module, "BATCH_TOKENS", 20)
    monkeypatch.setattr(batching, "BATCH_TOKENS", 20)
    taken = itertools.count()
    endless = (f"w{next(taken)} x" for _ in itertools.repeat(None))
    stream = tiny.embed(endless, layers=0)
    found = [next(stream) for _ in range(25)]
    assert next(taken) < 80
    expected = tiny.embed([f"w{i} x" for i in range(25)], layers=0)
    for one, other in zip(found, expected, strict=True):
        assert close(one, other, atol=network_rounding(tiny.config, 2))


def test_order_is_kept_across_pools(tiny, monkeypatch):
    monkeypatch.setattr(model_module, "POOL_BYTES", 0)
    monkeypatch.setattr(model_module, "BATCH_TOKENS", 20)
    monkeypatch.setattr(batching, "BATCH_TOKENS", 16)
    rng = random.Random(5)
    sentences = [[f"w{i}"] * rng.randrange(8) for i in range(60)]  # no two alike but the empty
    bound = network_rounding(tiny.config, 8)
    for sentence, vectors in zip(sentences, tiny.embed(sentences), strict=True):
        assert close(vectors, tiny.embed([sentence])[0], atol=bound)
    two_of_a_length = tiny.embed([["w0"] * 3, ["w1"] * 3])
    assert not close(*two_of_a_length, atol=100 * bound)  # so that a swap would be seen


def test_pooling(tiny):
    vectors = tiny.embed("a b c")
    assert close(tiny.embed_sentences(["a b c"])[0], vectors.mean(0))
    assert close(tiny.embed_sentences(["a b c"], pool="max")[0], vectors.max(0))
    first_last = tiny.embed_sentences(["a b c"], pool="first-last")[0]
    assert close(first_last, np.concatenate([vectors[-1, :16], vectors[0, 16:]]))
    found = tiny.embed_sentences(["a", "", "b c"], layers="all")
    assert found.shape == (3, 3, 32)
    assert not found[1].any()
    assert tiny.embed_sentences([]).shape == (0, 32)
    with pytest.raises(ConfigError, match="first-last"):
        tiny.embed_sentences(["a"], pool="sum")


def test_stateful_differs_and_starts_anew_each_time(tiny):
    stateless = tiny.embed(["a b c"])[0]
    for _ in range(2):
        with tiny.stateful() as stream:
            first = stream.embed(["a b c"])[0]
            second = stream.embed(["a b c"])[0]
        assert close(first, stateless, atol=network_rounding(tiny.config, 3))
        assert not np.allclose(second, first, atol=1e-3)


def test_stateful_rows_are_kept_apart(tiny):
    with tiny.stateful() as stream:
        stream.embed(["a b c", "d e"])
        both = stream.embed(["x y", "z"])
    with tiny.stateful() as stream:
        stream.embed(["", "d e"])
        later = stream.embed(["", "z", "new"])
    bound = network_rounding(tiny.config, 3)
    assert close(later[1], both[1], atol=bound)
    assert later[0].shape == (0, 32)
    assert close(later[2], tiny.embed("new"), atol=bound)


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["all", "average"])
def test_a_sentence_of_100_000_tokens(tiny, layers):
    tokens = [f"w{i % 977}" for i in range(100_000)]
    whole = tiny.embed([tokens], layers=layers)[0]
    with pytest.MonkeyPatch.context() as patch:  # one window: nothing is carried over
        patch.setattr("relmo.model.bilm.WINDOW_TOKENS", 1 << 40)
        unchunked = tiny.embed([tokens], layers=layers)[0]
    # Clips and gates forget: what rounding did 100 words ago is gone.
    assert close(whole, unchunked, atol=network_rounding(tiny.config, 100))


@pytest.mark.slow
def test_memory_of_a_long_sentence_is_its_result(tiny_contents):
    """Twice the length costs twice the result and no more, up to a constant."""
    import subprocess
    import sys

    code = """
import resource, sys, torch, relmo
from relmo.presets import read_preset
from relmo.formats import ModelContents
from relmo.model.bilm import BiLm
torch.manual_seed(0)
config = read_preset("tiny").model
model = relmo.Model(ModelContents(config, BiLm(config).state_dict(), "test"))
n = int(sys.argv[1])
model.embed([["a", "b"] * 50_000])  # windows of full size have been seen
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
vectors = model.embed([["a", "b"] * (n // 2)])[0]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, vectors.nbytes // 1024)
"""
    grown, result = map(
        int,
        subprocess.run(
            [sys.executable, "-c", code, "300000"], capture_output=True, text=True, check=True
        ).stdout.split(),
    )
    # The array, the tensor that it is copied from, and the token numbers (a few dozen bytes each).
    assert grown < 2 * result + 150 * 1024


def test_save_and_load(tiny, tmp_path):
    tiny.save(tmp_path / "model")
    tiny.save(tmp_path / "hdf5", to="bilm-tf")
    expected = tiny.embed("a b c", layers="all")
    for folder in ("model", "hdf5"):
        assert close(
            relmo.load(tmp_path / folder, tokenizer="whitespace").embed("a b c", layers="all"),
            expected,
            atol=network_rounding(tiny.config, 3),
        )
    with pytest.raises(ConfigError, match="choose from relmo, bilm-tf"):
        tiny.save(tmp_path / "x", to="onnx")


def test_arguments_of_load(tmp_path):
    with pytest.raises(ConfigError, match="precision is 'int4'"):
        relmo.load(tmp_path, precision="int4")
    with pytest.raises(ConfigError, match="Give either"):
        relmo.load()
    with pytest.raises(ConfigError, match="Give either"):
        relmo.load("a", weights="b")
    with pytest.raises(FormatError, match="small, medium, original"):
        relmo.load("enormous")
