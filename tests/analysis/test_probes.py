"""Linear probes find what is linearly there, and nothing else."""

import json
import zlib

import numpy as np
import pytest

from relmo.analysis import probes
from relmo.analysis.probes import probe
from relmo.errors import ConfigError, DataError
from relmo.formats import native
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
    """Noise; noise with the tag in it, and one number badly scaled; noise again."""
    result = []
    for tokens in batch:
        rng = np.random.default_rng(zlib.crc32(" ".join(tokens).encode()))
        noise = rng.standard_normal((3, len(tokens), 6)).astype(np.float32)
        for place, token in enumerate(tokens):
            tag = "NVA".index(token[1])
            noise[1, place, tag] += 6
            noise[1, place, 4] = 1000 + 50 * noise[1, place, 4]
        result.append(noise)
    return result


@pytest.mark.slow
def test_what_is_there_is_found(monkeypatch):
    monkeypatch.setattr(probes, "CHUNK_SENTENCES", 7)
    parts = sentences(400, 0), sentences(50, 1), sentences(60, 2)
    result = probe(embed, ["noise", "signal", "more noise"], *parts, epochs=4)
    assert result.best == "signal"
    assert result.test[1] > 95
    assert all(score < 45 for score in (result.test[0], result.test[2]))  # chance is 33
    assert result.n_tags == 3
    assert result.n_tokens == sum(len(s.tokens) for s in parts[0])


@pytest.mark.slow
def test_kinds_of_different_lengths():
    """The tag is in two numbers of which neither tells it alone."""

    def halves(batch):
        for noise in embed(batch):
            signal = noise[1]
            yield [signal[:, :1], signal[:, 1:3], signal[:, :3]]

    parts = sentences(400, 0), sentences(50, 1), sentences(60, 2)
    result = probe(halves, ["one", "two", "three"], *parts, epochs=4)
    assert result.mix == ()
    assert result.test[0] < 75 < result.test[1]
    assert result.dev[1] < result.dev[2]
    assert result.best == "three"


def test_a_mix_learns_which_kind_tells():
    parts = sentences(200, 0), sentences(50, 1), sentences(60, 2)
    names = ["noise", "signal", "more noise"]
    result = probe(embed, names, *parts, mixed=[0, 1, 2], epochs=4)
    assert result.names == (*names, "mix")
    assert np.argmax(result.mix) == 1
    assert result.test[3] > 80
    alone = probe(embed, names, *parts, epochs=4)
    assert alone.test == result.test[:3]  # probes learn beside each other, not from each other


def test_the_same_seed_gives_the_same_numbers():
    parts = sentences(60, 0), sentences(20, 1), sentences(20, 2)
    names = ["a", "b", "c"]
    assert probe(embed, names, *parts, epochs=2) == probe(embed, names, *parts, epochs=2)


def test_a_tag_never_met_is_never_right():
    parts = sentences(60, 0), sentences(20, 1), [TaggedSentence(("wN1",), ("OTHER",))]
    assert probe(embed, ["a", "b", "c"], *parts, epochs=1).test == (0, 0, 0)


def test_mistakes():
    some = sentences(3, 0)
    with pytest.raises(DataError, match="The dev part holds no token"):
        probe(embed, ["a", "b", "c"], some, [], some)
    with pytest.raises(ConfigError, match="--epochs is 0"):
        probe(embed, ["a", "b", "c"], some, some, some, epochs=0)


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
    code, shown, said = run(*command, "--json")
    assert code == 0, said
    found = json.loads(shown)
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
