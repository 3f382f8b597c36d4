"""Whether a word means the same in two sentences, and the files that ask."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.analysis.word_in_context import WordPair, best_threshold, compare_pairs, read_pairs
from relmo.errors import DataError
from relmo.features.live import FunctionFeatures
from relmo.features.static import StaticVectors
from relmo.features.store import FeatureStore
from relmo.formats import native
from relmo.results import read_results

ROWS = [
    ("cat\tN\t1-0\tthe cat sat\tcats ran", "F"),
    ("sit\tV\t2-1\tthe cat sat\tcats sat .", "T"),
]


def write_part(folder, rows=ROWS):
    folder.mkdir()
    data, gold = zip(*rows, strict=True)
    (folder / f"{folder.name}.data.txt").write_text("\n".join(data) + "\n")
    (folder / f"{folder.name}.gold.txt").write_text("\n".join(gold) + "\n")
    return folder


def test_reading(tmp_path):
    first, second = read_pairs(write_part(tmp_path / "dev"))
    assert first == WordPair("cat", (("the", "cat", "sat"), ("cats", "ran")), (1, 0), False)
    assert second.same


@pytest.mark.parametrize(
    ("row", "answer", "said"),
    [
        ("cat\tN\t1-0\tthe cat", "T", "line 1: expected word, part of speech"),
        ("cat\tN\t1\tthe cat\tcat", "T", "line 1: expected word"),
        ("cat\tN\t1-1\tthe cat\tcat", "T", "line 1: the places are 1-1, but"),
        ("cat\tN\t1-0\tthe cat\tcat", "yes", "the answer is 'yes'; expected T or F"),
    ],
)
def test_damaged_rows(tmp_path, row, answer, said):
    with pytest.raises(DataError, match=said):
        read_pairs(write_part(tmp_path / "dev", [(row, answer)]))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match=r"holds no files \*.data.txt"):
        read_pairs(tmp_path)
    folder = write_part(tmp_path / "dev")
    (folder / "dev.gold.txt").write_text("T\n")
    with pytest.raises(DataError, match=r"has 2 lines, .* has 1"):
        read_pairs(folder)
    (folder / "dev.gold.txt").unlink()
    with pytest.raises(DataError, match="Cannot read"):
        read_pairs(folder)


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=12))
def test_the_threshold_is_the_best_there_is(pairs):
    cosines, same = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs])

    def n_right(threshold):
        return int(((cosines >= threshold) == same).sum())

    assert n_right(best_threshold(cosines, same)) == max(map(n_right, np.arange(-6, 7) - 0.5))


def pairs(n, seed):
    """`bank` beside `river` or beside `money`: the same where its neighbours are."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        one, other = (("river", "money")[i] for i in rng.integers(2, size=2))
        sentences = ((one, "bank"), ("the", other, "bank"))
        found.append(WordPair("bank", sentences, (1, 2), one == other))
    return found


def test_what_knows_the_context_tells_and_what_does_not_guesses(tmp_path):
    words = StaticVectors(["river", "money", "bank"], np.eye(3, dtype=np.float32))

    def embed(sentences):  # the vector of the token before
        return [np.roll(x, 1, axis=0)[None] for x in words.embed(sentences)]

    features = [words, FunctionFeatures("before", "before", 1, 3, embed)]
    parts = pairs(300, 0), pairs(40, 1), pairs(60, 2)
    store = FeatureStore(tmp_path)
    result = compare_pairs(features, *parts, store=store)
    assert result.names == ("static", "static context", "before", "before context")
    assert result.test[1:3] == result.dev[1:3] == (100, 100)
    assert result.best == "static context"
    same = 100 * np.mean([pair.same for pair in parts[2]])
    # To the word alone all pairs are alike: it says what most of those that it learns from are.
    says_same = np.mean([pair.same for pair in parts[0]]) > 0.5
    assert result.test[0] == pytest.approx(same if says_same else 100 - same)
    assert result.majority[1] == pytest.approx(max(same, 100 - same))
    assert result.n_pairs == (300, 40, 60)
    with pytest.raises(DataError, match="The dev part holds no pair"):
        compare_pairs(features, parts[0], [], parts[2], store=store)


def test_the_verb(run, tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    (tmp_path / "vectors.txt").write_text("cat 1 0\ncats 1 0\nsat 0 1\n")
    parts = [("--" + name, write_part(tmp_path / name)) for name in ("train", "dev", "test")]
    command = ("probe", "wic", *(word for part in parts for word in part))
    both = ("-m", tmp_path / "model", "--static", tmp_path / "vectors.txt")
    code, shown, said = run(*command, *both, "--json", "-o", tmp_path / "results.json")
    assert code == 0, said
    found = json.loads(shown)
    layers = ["layer 0", "layer 1", "layer 2", "average", "context"]
    assert found["names"] == [*layers, "static", "static context", "average + static"]
    assert found["majority"] == [50, 50]
    measured = read_results(tmp_path / "results.json")
    rows = {(value.row, value.group): value.value for value in measured.values}
    assert rows["layer 0", "test"] == 100
    assert rows["majority", "dev"] == 50
    assert len(measured.data) == 6
    assert found["test"][5] == 50  # to these vectors, both pairs are the same
    assert found["test"][0] == 100  # to the letters, `cats` is not `cat`
    _, shown, _ = run(*command, *both)
    assert shown.splitlines()[-1].split() == ["majority", "50.00", "50.00"]
    assert "context" in run(*command)[1]  # of the bundled model
