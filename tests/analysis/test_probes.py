"""Linear probes find what is linearly there, and nothing else."""

import json
import zlib

import numpy as np
import pytest

import relmo
from relmo.analysis.probes import probe_tags
from relmo.errors import ConfigError, DataError
from relmo.features.live import FunctionFeatures, open_features
from relmo.features.store import FeatureStore
from relmo.formats import native
from relmo.results import read_results
from relmo.text.conllu import TaggedSentence

TAGS = ("NOUN", "VERB", "ADJ")


def sentences(n, seed):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        tags = tuple(rng.choice(TAGS, rng.integers(1, 9)).tolist())
        found.append(TaggedSentence(tuple(f"w{tag[0]}{rng.integers(9)}" for tag in tags), tags))
    return found


def embed(batch):
    """Noise by the word; noise with the tag in it, and one number badly scaled; noise again."""
    result = []
    for tokens in batch:
        rng = np.random.default_rng(zlib.crc32(" ".join(tokens).encode()))
        noise = rng.standard_normal((3, len(tokens), 6)).astype(np.float32)
        for place, token in enumerate(tokens):
            word = np.random.default_rng(zlib.crc32(token.encode()) // 27)
            noise[0, place] = word.standard_normal(6)  # a layer 0 depends on the word alone
            noise[1, place, "NVA".index(token[1])] += 6
            noise[1, place, 4] = 1000 + 50 * noise[1, place, 4]
        result.append(noise)
    return result


LAYERS = FunctionFeatures("layers", "layers", 3, 6, embed)
SIGNAL = FunctionFeatures("signal", "signal", 1, 6, lambda batch: [x[1:2] for x in embed(batch)])
NOISE = FunctionFeatures("noise", "noise", 1, 6, lambda batch: [x[2:] for x in embed(batch)])


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "store")


@pytest.mark.slow
def test_what_is_there_is_found(store):
    parts = sentences(400, 0), sentences(50, 1), sentences(60, 2)
    result = probe_tags([LAYERS], *parts, epochs=4, store=store)
    assert result.names == ("layer 0", "layer 1", "layer 2", "average", "mix")
    assert result.dev[1] > 95
    assert result.test[1] > 95
    assert result.test[2] < 45  # chance is 33
    assert result.n_tags == 3
    counts = [sum(len(s.tokens) for s in part) for part in parts]
    assert [result.n_tokens, result.n_dev, result.n_test] == counts


@pytest.mark.slow
def test_features_of_different_dimensions_side_by_side(store):
    """The tag is in three numbers of which neither one nor two tell it alone."""

    def part(name, columns):
        cut = lambda batch: [x[1:2, :, columns] for x in embed(batch)]  # noqa: E731
        return FunctionFeatures(name, name, 1, len(columns), cut)

    features = [part("one", [0]), part("two", [1, 2]), part("three", [0, 1, 2])]
    parts = sentences(400, 0), sentences(50, 1), sentences(60, 2)
    result = probe_tags(features, *parts, epochs=4, store=store)
    assert result.names == ("one", "two", "three")
    assert result.mix == ()
    assert result.test[0] < 75 < result.test[1]
    assert result.test[2] > 95
    assert result.dev[1] < result.dev[2]
    assert result.best == "three"


def test_a_mix_learns_which_layer_tells(store):
    parts = sentences(200, 0), sentences(50, 1), sentences(60, 2)
    result = probe_tags([LAYERS], *parts, epochs=4, store=store)
    assert np.argmax(result.mix) == 1
    assert result.test[-1] > 80
    alone = probe_tags([SIGNAL], *parts, epochs=4, store=store)
    assert alone.test[0] == result.test[1]  # heads learn beside each other, not from each other
    assert alone.best == "static"


def test_the_same_seed_gives_the_same_numbers(store):
    parts = sentences(150, 0), sentences(20, 1), sentences(20, 2)
    one, same, other = (
        probe_tags([LAYERS], *parts, epochs=2, seed=seed, store=store) for seed in (0, 0, 1)
    )
    assert one == same
    assert one.mix != other.mix


def test_the_second_call_computes_no_vector(store):
    n_computed = 0

    def counted(batch):
        nonlocal n_computed
        n_computed += len(batch)
        return embed(batch)

    features = FunctionFeatures("layers", "counted", 3, 6, counted)
    parts = sentences(30, 0), sentences(9, 1), sentences(9, 2)
    first = probe_tags([features], *parts, epochs=1, store=store)
    assert n_computed == len({s.tokens for part in parts for s in part})
    n_computed = 0
    again = probe_tags([features], *parts, epochs=1, store=FeatureStore(store.directory))
    assert n_computed == 0
    assert again == first


def test_a_tag_never_met_is_never_right(store):
    parts = sentences(60, 0), sentences(20, 1), [TaggedSentence(("wN1",), ("OTHER",))]
    result = probe_tags([SIGNAL, NOISE], *parts, epochs=1, store=store)
    assert result.test == (0, 0)
    assert result.names == ("signal", "noise")


def test_mistakes(store):
    some = sentences(3, 0)
    with pytest.raises(DataError, match="The dev part holds no token"):
        probe_tags([NOISE], some, [], some, store=store)
    with pytest.raises(ConfigError, match="epochs is 0"):
        probe_tags([NOISE], some, some, some, epochs=0, store=store)
    for seed in (-1, 2**32):
        with pytest.raises(ConfigError, match=f"seed is {seed}; expected"):
            probe_tags([NOISE], some, some, some, seed=seed, store=store)
    with pytest.raises(ConfigError, match="give a model, static vectors, or both"):
        open_features(None, None)


def write_conllu(path, n, seed):
    lines = []
    for sentence in sentences(n, seed):
        for i, (token, tag) in enumerate(zip(sentence.tokens, sentence.tags, strict=True), start=1):
            lines.append("\t".join([str(i), token, "_", tag, *"______"]))
        lines.append("")
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def parts(tmp_path):
    sizes = {"train": 60, "dev": 20, "test": 20}
    paths = {name: write_conllu(tmp_path / name, n, n) for name, n in sizes.items()}
    return [word for name, path in paths.items() for word in (f"--{name}", path)]


def test_the_verb_probes_each_layer(run, tiny_contents, parts, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    command = ("probe", "pos", *parts, "-m", tmp_path / "model", "--epochs", 10)
    code, shown, said = run(*command, "--json", "-o", tmp_path / "results.json")
    assert code == 0, said
    found = json.loads(shown)
    measured = read_results(tmp_path / "results.json")
    by_row = {(value.row, value.group): value for value in measured.values}
    assert by_row["mix", "test"].value == pytest.approx(found["test"][4])
    assert by_row["mix", "test"].interval.low < found["test"][4]
    assert measured.models == {"model": relmo.load(tmp_path / "model").fingerprint}
    assert [file.name for file in measured.data] == ["train", "dev", "test"]
    assert found["names"] == ["layer 0", "layer 1", "layer 2", "average", "mix"]
    assert len(found["mix"]) == 3
    assert found["test"][0] > 90  # the words tell their tag by a letter
    _, shown, _ = run(*command)
    rows = [line.split() for line in shown.splitlines()]
    assert rows[0] == ["dev", "test"]
    assert float(rows[1][-1]) == round(found["test"][0], 2)


@pytest.fixture
def static(tmp_path):
    rows = [f"w{tag}{i} {int(tag == 'N')} {int(tag == 'V')}" for tag in "NVA" for i in range(9)]
    (tmp_path / "vectors.txt").write_text("\n".join(rows) + "\n")
    return tmp_path / "vectors.txt"


def test_the_verb_probes_static_vectors(run, parts, static):
    code, shown, said = run("probe", "pos", *parts, "--static", static, "--epochs", 30, "--json")
    assert code == 0, said
    found = json.loads(shown)
    assert found["names"] == ["static"]
    assert found["test"] == [100.0]


def test_the_verb_probes_both(run, parts, static, tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    both = ("-m", tmp_path / "model", "--static", static)
    code, shown, said = run("probe", "pos", *parts, *both, "--epochs", 2)
    assert code == 0, said
    names = [line[:18].strip() for line in shown.splitlines()]
    layers = ["layer 0", "layer 1", "layer 2", "average"]
    assert names == ["", *layers, "static", "average + static", "mix"]


def test_the_verb_probes_the_bundled_model_unless_told(run, parts):
    code, shown, said = run("probe", "pos", *parts, "--epochs", 1)
    assert code == 0, said
    assert [line[:18].strip() for line in shown.splitlines()][-2:] == ["average", "mix"]
