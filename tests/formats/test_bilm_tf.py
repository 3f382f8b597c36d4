"""bilm-tf's and AllenNLP's files are read as they were meant, and written back bit for bit."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import h5py
import legacy
import numpy as np
import pytest
import reference
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tolerance import network_rounding

import relmo
from relmo.errors import ConfigError, FormatError, RelmoWarning
from relmo.formats import WRITERS, read_model

SENTENCES = [["The", "cat", "sat", "."], ["日本", "x" * 60, "<S>", "e\u0301", "</S>"], ["a"]]
VOCABULARY = ["<S>", "</S>", "<UNK>", "the", "日"]


def write_random(directory, seed=0, **overrides):
    """A model with its softmax and vocabulary: its options and tensors."""
    rng = np.random.default_rng(seed)
    options = legacy.random_options(rng, **overrides)
    tensors = legacy.random_bilm_tf(rng, options)
    dim = options["lstm"]["projection_dim"]
    softmax = legacy.normal(rng, 5, dim, scale=1), legacy.normal(rng, 5, scale=1)
    legacy.write_bilm_tf(directory, options, tensors, softmax=softmax, vocabulary=VOCABULARY)
    return options, tensors


def read_hdf5(path):
    tensors = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: tensors.update({name: item[()]} if hasattr(item, "dtype") else {})
        )
    return tensors


def assert_same_bits(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype
        assert got[name].shape == value.shape
        assert got[name].tobytes() == value.tobytes(), name


def assert_equals_oracle(model, options, tensors):
    for sentence, got in zip(SENTENCES, model.embed(SENTENCES, layers="all"), strict=True):
        expected, _ = reference.layers(options, tensors, sentence)
        # Projections of random weights enlarge what comes in up to fourfold.
        scale = 4 * max(1, np.abs(expected).max())
        atol = network_rounding(model.config, len(sentence), scale)
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("seed", range(8))
def test_vectors_are_those_of_the_oracle(tmp_path, seed):
    options, tensors = write_random(tmp_path, seed)
    assert_equals_oracle(relmo.load(tmp_path), options, tensors)


@pytest.mark.parametrize("dim", [3, 5])
def test_a_lone_layer_is_read_in_both_spellings(tmp_path, dim):
    options, tensors = write_random(tmp_path / "bare", n_layers=1, dim=dim, projection_dim=3)
    assert any("RNN/LSTMCell" in name for name in tensors)
    stacked = {
        name.replace("RNN/LSTMCell", "RNN/MultiRNNCell/Cell0/LSTMCell"): value
        for name, value in tensors.items()
    }
    legacy.write_bilm_tf(tmp_path / "stacked", options, stacked)
    for spelling in ("bare", "stacked"):
        assert_equals_oracle(relmo.load(tmp_path / spelling), options, tensors)


def test_261_and_262_characters_are_the_same_model(tmp_path):
    options, tensors = write_random(tmp_path / "262", n_characters=262)
    options["char_cnn"]["n_characters"] = 261
    legacy.write_bilm_tf(tmp_path / "261", options, tensors)
    first, second = (read_model(tmp_path / name) for name in ("261", "262"))
    assert first.config == second.config
    assert first.tensors.keys() == second.tensors.keys() >= {"encoder.characters.weight"}
    assert all(torch.equal(first.tensors[name], t) for name, t in second.tensors.items())
    assert not first.tensors["encoder.characters.weight"][0].any()

    options["char_cnn"]["n_characters"] = 260
    legacy.write_bilm_tf(tmp_path / "260", options, tensors)
    with pytest.raises(FormatError, match=r"options\.json: .*n_characters is 260"):
        read_model(tmp_path / "260")


def test_settings_that_may_be_missing(tmp_path):
    options, tensors = write_random(
        tmp_path / "full",
        n_layers=1,
        n_highway=0,
        activation="relu",
        max_characters_per_token=50,
        use_skip_connections=False,
        cell_clip=None,
        proj_clip=None,
    )
    for part, keys in {
        "lstm": ("n_layers", "cell_clip", "proj_clip", "use_skip_connections"),
        "char_cnn": ("n_highway", "n_characters", "max_characters_per_token", "activation"),
    }.items():
        for key in keys:
            del options[part][key]
    legacy.write_bilm_tf(tmp_path / "short", options, tensors)
    assert read_model(tmp_path / "short").config == read_model(tmp_path / "full").config


def test_unknown_options_are_warned_of_exactly_once(tmp_path):
    options, tensors = write_random(tmp_path)
    options["reverse"] = True
    options["char_cnn"]["projection_after_highway"] = True
    options |= {"n_tokens_vocab": 5, "batch_size": 128, "bidirectional": True}  # known, unused
    legacy.write_bilm_tf(tmp_path, options, tensors)
    with pytest.warns(RelmoWarning) as warned:
        model = relmo.load(tmp_path)
    assert len(warned) == 1
    message = str(warned[0].message)
    assert message.endswith(
        "unknown options char_cnn.projection_after_highway, reverse are not used."
    )
    assert str(tmp_path) in message
    assert_equals_oracle(model, options, tensors)


def test_softmax_is_read(tmp_path):
    write_random(tmp_path)
    expected = read_hdf5(tmp_path / "softmax.hdf5")
    softmax = read_model(tmp_path).softmax
    np.testing.assert_array_equal(softmax.weight.numpy(), expected["softmax/W"])
    np.testing.assert_array_equal(softmax.bias.numpy(), expected["softmax/b"])


def test_softmax_of_another_size_is_refused(tmp_path):
    options, tensors = write_random(tmp_path)
    dim = options["lstm"]["projection_dim"]
    for weight, bias in [((4, dim), (4,)), ((5, dim + 1), (5,)), ((5, dim), (4,))]:
        softmax = np.zeros(weight, np.float32), np.zeros(bias, np.float32)
        legacy.write_bilm_tf(tmp_path, options, tensors, softmax=softmax)
        with pytest.raises(FormatError, match="softmax"):
            read_model(tmp_path)


def test_two_softmax_files_are_refused(tmp_path):
    write_random(tmp_path)
    (tmp_path / "again.hdf5").write_bytes((tmp_path / "softmax.hdf5").read_bytes())
    with pytest.raises(FormatError, match=r"one softmax file, found 2 \(again.hdf5, softmax.hdf5"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("vocab.txt", legacy.lines(VOCABULARY)),
        ("words", legacy.lines(VOCABULARY).removesuffix(b"\n")),
        ("vocab.txt", legacy.lines(VOCABULARY).replace(b"\n", b"\r\n")),
        ("vocab.txt", b"\xef\xbb\xbf" + legacy.lines(VOCABULARY)),
        ("vocab.txt", legacy.lines([*VOCABULARY, "!!!MAXTERMID"])),
        ("vocab.txt.gz", gzip.compress(legacy.lines(VOCABULARY))),
    ],
    ids=["plain", "no-last-newline", "crlf", "bom", "maxtermid", "gz"],
)
def test_vocabulary_is_found(tmp_path, name, data):
    write_random(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / name).write_bytes(data)
    assert read_model(tmp_path).vocabulary.words == tuple(VOCABULARY)


def test_text_beside_that_is_no_vocabulary_is_left_alone(tmp_path):
    write_random(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a corpus\n" * 9))
    (tmp_path / "b.gz").write_bytes(gzip.compress(legacy.lines(VOCABULARY))[:10] + b"damaged")
    (tmp_path / "c.txt").write_bytes(b"<S> the cat </S>\n" * 9)
    (tmp_path / "d.txt").write_bytes(b"<S>\n</S>\n<UNKNOWN>\n")
    with (tmp_path / "corpus").open("wb") as file:
        file.write(b"<S>\n")
        file.truncate(1 << 30)  # more than any vocabulary; a hole, so it takes no room
    assert read_model(tmp_path).vocabulary is None


def test_a_vocabulary_that_is_not_utf8_names_its_line(tmp_path):
    write_random(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(legacy.lines(VOCABULARY) + b"caf\xe9\n")
    with pytest.raises(FormatError, match=r"vocab.txt: line 6 is not UTF-8 \(byte 0xe9\)"):
        read_model(tmp_path)


# ---- there and back -----------------------------------------------------------------------------

EVERY_MAGNITUDE = [
    float(np.float32(sign * 1.2345678 * 2.0**exponent))
    for exponent in range(-149, 128)
    for sign in (1, -1)
]


@settings(max_examples=25, deadline=None)
@given(
    legacy.options_strategy(),
    st.integers(0, 99),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9),
)
@example(legacy.random_options(np.random.default_rng(0), dim=300), 0, EVERY_MAGNITUDE)
@example(
    legacy.random_options(np.random.default_rng(1), n_layers=1), 0, [1e-30, -1e-30, -0.0, 1e30]
)
def test_hdf5_to_relmo_to_hdf5_is_the_same_bit_for_bit(options, seed, biases):
    rng = np.random.default_rng(seed)
    tensors = legacy.random_bilm_tf(rng, options)
    for name, value in tensors.items():
        if name.endswith("/B"):
            tensors[name] = np.resize(np.float32(biases), value.shape)
    with tempfile.TemporaryDirectory() as folder:
        source, ours, theirs = (Path(folder) / name for name in ("source", "ours", "theirs"))
        legacy.write_bilm_tf(source, options, tensors)
        WRITERS["relmo"](read_model(source), ours)
        WRITERS["bilm-tf"](read_model(ours), theirs)
        assert_same_bits(read_hdf5(theirs / "weights.hdf5"), tensors)
        assert json.loads((theirs / "options.json").read_text()) == options


def test_a_loaded_model_saves_what_it_was_loaded_from(tmp_path):
    _, tensors = write_random(tmp_path / "source")
    relmo.load(tmp_path / "source").save(tmp_path / "ours")
    relmo.load(tmp_path / "ours").save(tmp_path / "theirs", to="bilm-tf")
    assert_same_bits(read_hdf5(tmp_path / "theirs" / "weights.hdf5"), tensors)
    softmax = read_hdf5(tmp_path / "source" / "softmax.hdf5")
    assert_same_bits(read_hdf5(tmp_path / "theirs" / "softmax.hdf5"), softmax)
    assert (tmp_path / "theirs" / "vocab.txt").read_bytes() == legacy.lines(VOCABULARY)
    with pytest.raises(ConfigError, match="choose from relmo, bilm-tf"):
        relmo.load(tmp_path / "ours").save(tmp_path / "more", to="bilm")


@pytest.mark.parametrize("seed", range(3))
def test_the_layout_written_is_that_of_the_original(tmp_path, seed):
    options, _ = write_random(tmp_path / "source", seed)
    relmo.load(tmp_path / "source").save(tmp_path / "written", to="bilm-tf")
    for name in ("weights.hdf5", "softmax.hdf5"):
        found = []
        for folder in ("source", "written"):
            with h5py.File(tmp_path / folder / name) as file:
                layout = {}
                file.visititems(
                    lambda name, item, layout=layout: layout.update({name: describe(item)})
                )
            found.append(layout)
        assert found[0] == found[1]
    written = json.loads((tmp_path / "written" / "options.json").read_text())
    assert written.pop("n_tokens_vocab") == len(VOCABULARY)
    assert written == options
    assert sorted(p.name for p in (tmp_path / "written").iterdir()) == [
        "options.json",
        "softmax.hdf5",
        "vocab.txt",
        "weights.hdf5",
    ]


def describe(item):
    assert not item.attrs
    if isinstance(item, h5py.Group):
        return "group"
    assert item.dtype == np.float32
    assert item.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    return item.shape


def test_fine_tuned_weights_are_what_is_written(tmp_path):
    options, tensors = write_random(tmp_path / "source", n_layers=2, dim=7, projection_dim=4)
    for name in tensors:
        if name.endswith("/B"):  # so large that each forget bias leaves a remainder of 1 or -1
            tensors[name] += np.float32(3e7)
    legacy.write_bilm_tf(tmp_path / "source", options, tensors)
    model = relmo.load(tmp_path / "source")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.bilm.parameters():
            parameter.copy_(torch.randn_like(parameter))
        model.bilm.encoder.characters.weight[0] = 0
    model.save(tmp_path / "tuned", to="bilm-tf")
    written = read_hdf5(tmp_path / "tuned" / "weights.hdf5")
    again = relmo.load(tmp_path / "tuned")
    for name, parameter in model.bilm.state_dict().items():
        # Less 1 and plus 1 again, float32 keeps 2^-24 of a number below 2, and 2^-23 below 4.
        atol = 2**-22 if name.endswith(".bias") and "stack" in name else 0
        got = again.bilm.state_dict()[name]
        np.testing.assert_allclose(got.numpy(), parameter.numpy(), rtol=0, atol=atol)
    assert_equals_oracle(model, options, written)
    assert_equals_oracle(again, options, written)


# ---- which files --------------------------------------------------------------------------------


def test_a_pair_may_lie_in_two_folders(tmp_path):
    options, tensors = write_random(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    weights = (tmp_path / "weights.hdf5").rename(tmp_path / "elsewhere" / "anything")
    settings_file = (tmp_path / "options.json").rename(tmp_path / "something.txt")
    model = relmo.load(options=settings_file, weights=str(weights))
    assert_equals_oracle(model, options, tensors)
    assert_equals_oracle(relmo.load(weights, options=settings_file), options, tensors)


def test_weights_alone_find_their_options_beside_them(tmp_path):
    options, tensors = write_random(tmp_path)
    (tmp_path / "meta.json").write_text('{"lstm": "no options"}')
    assert_equals_oracle(relmo.load(tmp_path / "weights.hdf5"), options, tensors)
    assert_equals_oracle(relmo.load(weights=tmp_path / "weights.hdf5"), options, tensors)


def test_several_options_files_are_told_apart_by_naming_one(tmp_path):
    options, tensors = write_random(tmp_path)
    (tmp_path / "more.json").write_text((tmp_path / "options.json").read_text())
    with pytest.raises(FormatError, match=r"one options file, found 2 \(more.json, options.json\)"):
        relmo.load(tmp_path)
    with pytest.raises(FormatError, match=r"weights.hdf5 needs its options: .* found 2"):
        relmo.load(tmp_path / "weights.hdf5")
    model = relmo.load(weights=tmp_path / "weights.hdf5", options=tmp_path / "more.json")
    assert_equals_oracle(model, options, tensors)


def test_files_named_outright_that_are_not_there_or_not_right(tmp_path):
    write_random(tmp_path)
    weights, options = tmp_path / "weights.hdf5", tmp_path / "options.json"
    with pytest.raises(FormatError, match=r"options file .*none\.json does not exist"):
        relmo.load(weights=weights, options=tmp_path / "none.json")
    with pytest.raises(FormatError, match=r"no model .*none\.hdf5"):
        relmo.load(weights=tmp_path / "none.hdf5", options=options)
    with pytest.raises(FormatError, match=r"vocab\.txt is not an HDF5 file"):
        relmo.load(weights=tmp_path / "vocab.txt", options=options)
    with pytest.raises(FormatError, match=r"weights\.hdf5 is not JSON"):
        relmo.load(weights=weights, options=weights)
    with pytest.raises(FormatError, match=r"vocab\.txt is not JSON"):
        relmo.load(weights=weights, options=tmp_path / "vocab.txt")
    with pytest.raises(ConfigError, match="belongs to HDF5 weights"):
        relmo.load(tmp_path, options=options)
    with pytest.raises(ConfigError, match="either"):
        relmo.load(tmp_path, weights=weights)
    with pytest.raises(ConfigError, match="either"):
        relmo.load(options=options)


def test_a_dataset_that_is_missing_or_of_another_shape_is_named(tmp_path):
    options, tensors = write_random(tmp_path, n_highway=1)
    for name in tensors:
        if name == "CNN_proj/W_proj" or name.endswith("W_P_0"):
            continue  # without these it is another model, whose sizes do not agree
        less = {k: v for k, v in tensors.items() if k != name}
        legacy.write_bilm_tf(tmp_path, options, less)
        with pytest.raises(FormatError, match=rf"{name}.* missing|weights file, found 0"):
            read_model(tmp_path)
        legacy.write_bilm_tf(tmp_path, options, {**tensors, name: tensors[name][:-1]})
        shape = list(tensors[name].shape)
        shorter = [shape[0] - 1, *shape[1:]]
        with pytest.raises(FormatError) as caught:
            read_model(tmp_path)
        for part in (str(tmp_path), "weights.hdf5", name, str(shape), str(shorter)):
            assert part in str(caught.value)
