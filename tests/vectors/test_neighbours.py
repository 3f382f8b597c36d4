"""What is near a word, by itself and in its sentence; and the verbs that tell."""

import json

import numpy as np
import pytest
import torch
from tolerance import network_rounding, rounding

import relmo
from relmo.errors import ConfigError, DataError
from relmo.features.static import StaticVectors
from relmo.formats import ModelContents, native
from relmo.formats.contents import Softmax
from relmo.text.marks import parse_marked
from relmo.text.tokenize import split_whitespace
from relmo.text.vocabulary import SPECIAL, Vocabulary
from relmo.vectors import corpus_index
from relmo.vectors import neighbours as near
from relmo.vectors.corpus_index import IndexOptions

WORDS = ("cat", "cats", "bird", "ran", "saw")
TEXT = "the cat saw a bird\nthe cats ran\na bird ran\nthe cat saw a bird\n\nthe bird saw cats\n"


@pytest.fixture(scope="module")
def contents(tiny_contents):
    torch.manual_seed(2)
    dim, words = tiny_contents.config.lstm.projection_dim, (*SPECIAL, *WORDS)
    softmax = Softmax(torch.randn(len(words), dim), torch.zeros(len(words)))
    config, tensors = tiny_contents.config, tiny_contents.tensors
    return ModelContents(config, tensors, "a test", vocabulary=Vocabulary(words), softmax=softmax)


@pytest.fixture
def folder(contents, tiny_contents, tmp_path):
    native.write(contents, tmp_path / "model")
    native.write(tiny_contents, tmp_path / "without")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def cosine_bound(contents):
    """Vectors are longer than 1, so that their rounding is more than that of their directions."""
    return network_rounding(contents.config, 5) + rounding(3 * contents.config.output_dim)


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_nearest_words_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    vectors = StaticVectors([f"w{i}" for i in range(40)], rng.standard_normal((40, 6)))
    found = near.nearest_words(vectors, "w3", vectors.matrix[3], 5)
    scores = {
        w: cosine(v, vectors.matrix[3]) for w, v in zip(vectors.words, vectors.matrix, strict=True)
    }
    expected = sorted((w for w in scores if w != "w3"), key=scores.get, reverse=True)[:5]
    assert [n.word for n in found] == expected
    assert np.allclose(
        [n.score for n in found], [scores[w] for w in expected], atol=rounding(3 * 6)
    )
    with pytest.raises(ConfigError, match="k is 0"):
        near.nearest_words(vectors, "w3", vectors.matrix[3], 0)


def test_both_kinds_side_by_side_count_the_same(contents):
    rng, words = np.random.default_rng(4), ("cats", "ran", "cat", "saw")
    static = StaticVectors(words, rng.standard_normal((4, 3)).astype(np.float32) * 100)
    embedder = relmo.Model(contents)
    found = near.nearest_by_kind("cat", 9, model=embedder, static=static)["token + static"]
    expected = {
        w: (cosine(*embedder.encode([w, "cat"])) + cosine(static.vector(w), static.vector("cat")))
        / 2
        for w in ("cats", "ran", "saw")  # what both know
    }
    assert [n.word for n in found] == sorted(expected, key=expected.get, reverse=True)
    assert np.allclose(
        [n.score for n in found], [expected[n.word] for n in found], atol=cosine_bound(contents)
    )


def test_token_vectors_are_layer_0(contents, monkeypatch):
    monkeypatch.setattr(near, "CHUNK_WORDS", 2)
    embedder = relmo.Model(contents)
    vectors = near.token_vectors(embedder, WORDS)
    (layer,) = embedder.embed([list(WORDS)], layers=0)
    assert np.allclose(
        vectors.matrix, layer[:, : vectors.dim], atol=network_rounding(contents.config, 0)
    )


def test_words_of_the_model(contents, tiny_contents):
    assert near.vocabulary_of(relmo.Model(contents)) == list(WORDS)
    softmax = near.softmax_vectors(relmo.Model(contents))
    assert np.array_equal(softmax.vector("cats"), contents.softmax.weight[4].numpy())
    assert near.softmax_vectors(relmo.Model(tiny_contents)) is None
    with pytest.raises(DataError, match="no vocabulary"):
        near.vocabulary_of(relmo.Model(tiny_contents))


@pytest.mark.parametrize("layers", ["average", 2])
def test_occurrences_are_those_of_brute_force(contents, tmp_path, layers):
    embedder = relmo.Model(contents)
    sentences = [line.split() for line in dict.fromkeys(TEXT.splitlines()) if line]
    index = corpus_index.index_sentences(
        TEXT.splitlines(), tmp_path / "index", embedder, IndexOptions(layers)
    )
    assert len(index) == sum(map(len, sentences))
    query = parse_marked("a [cat] ran", split_whitespace)
    vector = embedder.embed([query.tokens], layers=layers)[0][1]
    scored = [
        (cosine(v, vector), tuple(s), place)
        for s, vectors in zip(sentences, embedder.embed(sentences, layers=layers), strict=True)
        for place, v in enumerate(vectors)
    ]
    expected = sorted(scored, reverse=True)[:4]
    found = corpus_index.nearest_occurrences(index, embedder, query, 4)
    assert [(hit.tokens, hit.place) for hit in found] == [e[1:] for e in expected]
    assert np.allclose(
        [hit.score for hit in found], [e[0] for e in expected], atol=cosine_bound(contents)
    )


def test_one_stop_word(contents, tmp_path):
    model = relmo.Model(contents)
    for words in ("cat", ("cat",)):
        index = corpus_index.index_sentences(
            ["a cat ran"], tmp_path / f"{len(words)}", model, IndexOptions(stop_words=words)
        )
        assert len(index) == 2


def test_an_index_of_another_model_is_refused(contents, tmp_path):
    index = corpus_index.index_sentences(["a cat"], tmp_path / "index", relmo.Model(contents))
    query = parse_marked("a [cat]", split_whitespace)
    characters = relmo.Model(contents, tokenizer="characters")
    with pytest.raises(ConfigError, match="tokenizer 'whitespace', but 'characters'") as raised:
        corpus_index.nearest_occurrences(index, characters, query, 1)
    assert raised.value.settings == ("tokenizer",)
    other = relmo.Model(contents)
    with torch.no_grad():
        other.bilm.encoder.projection.bias.add_(1)
    with pytest.raises(ConfigError, match="the weights of another model"):
        corpus_index.nearest_occurrences(index, other, query, 1)


def test_the_verb_on_a_word(run, folder):
    _, shown, _ = run("neighbours", "cat", "-m", folder / "model", "-k", 2, "--json")
    answer = json.loads(shown)
    assert answer == near.neighbours("cat", folder / "model", k=2).as_dict()
    found = answer["neighbours"]
    assert set(found) == {"token", "softmax"}
    assert all(len(some) == 2 and "cat" not in {n["word"] for n in some} for some in found.values())
    _, shown, _ = run("neighbours", "zebra", "-m", folder / "model")  # never seen: by its letters
    assert "by the token vector" in shown
    assert "softmax" not in shown


def test_the_verb_on_static_vectors(run, folder):
    (folder / "vectors.txt").write_text("cat 1 0\ncats 0.9 0.1\ncar 0 1\nwindow 0 2\n")
    static = ("--static", folder / "vectors.txt")
    _, shown, _ = run("neighbours", "Cat", *static, "-k", 2, "--json")  # all lower-case there
    assert [n["word"] for n in json.loads(shown)["neighbours"]["static"]] == ["cats", "car"]
    _, shown, _ = run("neighbours", "cat", *static, "-m", folder / "model", "-k", 2)
    header, first, *_ = shown.splitlines()
    assert header.split("by the")[1:] == [
        f" {by} vector{end}"
        for by, end in (
            ("token", "   "),
            ("softmax", "   "),
            ("static", "   "),
            ("token + static", ""),
        )
    ]
    assert first.split()[-1] == "cats"
    code, _, said = run("neighbours", "windov", *static)
    assert code == 2
    assert "'windov' is not among the 4 words" in said
    assert "Did you mean window?" in said


def test_the_verb_on_a_sentence(run, folder):
    where = ("-m", folder / "model")
    text = ("the [cat] saw a bird", *where, "-k", 3)
    _, shown, _ = run("neighbours", *text, "--corpus", folder / "text.txt", "--lines", "--json")
    found = json.loads(shown)
    assert len(found["hits"]) == 3
    assert ["the", "cat", "saw", "a", "bird"] not in [hit["tokens"] for hit in found["hits"]]
    build = ("index", "build", folder / "text.txt", *where, "-o", folder / "index", "--lines")
    assert run(*build)[0] == 0
    _, shown, _ = run("index", "search", *text, "-i", folder / "index", "--json")
    again = json.loads(shown)
    assert again == corpus_index.search_index(text[0], "index", "model", k=3).as_dict()
    scores = [[hit.pop("score") for hit in some["hits"]] for some in (found, again)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert again == found
    _, shown, _ = run("neighbours", *text, "--index", folder / "index")
    assert shown.splitlines()[0].count("[") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cat", "--corpus", "text.txt"], "Mark the word"),
        (["the [cat]", "--static", "text.txt"], "leave --static out"),
        (["the [cat]"], "either --corpus TEXT or --index DIR"),
        (["[the] [cat]", "--corpus", "text.txt"], "found 2"),
        (["a [] cat", "--corpus", "text.txt"], "splits as 'nothing'"),
        (["the [cat]", "--index", "text.txt"], "is not an index"),
        (["the [cat]", "--corpus", "text.txt", "--layers", "7"], "layers is 7"),
        ([" "], "Expected a word"),
    ],
)
def test_mistakes(run, folder, arguments, said):
    code, _, found = run(
        "neighbours", *arguments, "-m", folder / "model", *["--lines"] * ("--corpus" in arguments)
    )
    assert code == 2
    assert said in found


@pytest.mark.parametrize("word", ["two words", "The [cat] sat", "[cat]"])
def test_more_than_a_word(folder, word):
    with pytest.raises(ConfigError, match=r"Expected one word, found .* \(search_corpus\)"):
        near.neighbours(word, folder / "model")


def test_marks_and_phrases_are_words_too(folder):
    assert near.neighbours("[", folder / "model").word == "["
    phrases = StaticVectors(["new york", "paris"], np.eye(2, dtype=np.float32))
    assert [n.word for n in near.neighbours("new york", static=phrases).by_kind["static"]] == [
        "paris"
    ]


def test_nothing_to_compare_by():
    with pytest.raises(ConfigError, match="nothing to compare by"):
        near.nearest_by_kind("cat", 3, model=None, static=None)


def test_a_model_without_words(run, folder):
    code, _, said = run("neighbours", "cat", "-m", folder / "without")
    assert code == 2
    assert "no vocabulary" in said
