"""Probabilities of text against the NumPy biLM, their laws, and the verbs that print them."""

import itertools
import json
import math
from dataclasses import replace

import legacy
import numpy as np
import pytest
import reference
import torch
import typer
from tolerance import rounding
from typer.testing import CliRunner

from relmo.cli.perplexity import perplexity as perplexity_verb
from relmo.cli.score import mark_words
from relmo.cli.score import score as score_verb
from relmo.errors import ConfigError, DataError, FormatError
from relmo.formats import native, read_model
from relmo.formats.contents import Softmax
from relmo.inference import batching
from relmo.inference import scoring as scoring_module
from relmo.inference.model import Model
from relmo.inference.scoring import least_expected
from relmo.inference.text_scores import ScoredLine
from relmo.text.vocabulary import Vocabulary

WORDS = ("<S>", "</S>", "<UNK>", "a", "the", "cat", "sat", ".")
TEXT = "the cat sat .\n\nthe zebra sat\na\n"
# Through the encoder, two layers over six tokens, and a softmax; logits are below 10.
BOUND = rounding(60 + 2 * 6 * (2 * 4 + 6) + 4 + len(WORDS), scale=10)
SENTENCES = [line.split() for line in TEXT.split("\n")[:-1]]


@pytest.fixture(scope="module")
def legacy_model(tmp_path_factory):
    rng = np.random.default_rng(5)
    options = legacy.random_options(rng, n_layers=2, projection_dim=4, dim=6)
    tensors = legacy.random_bilm_tf(rng, options)
    softmax = (
        legacy.normal(rng, len(WORDS), 4, scale=1),
        legacy.normal(rng, len(WORDS), scale=1),
    )
    folder = tmp_path_factory.mktemp("model")
    legacy.write_bilm_tf(folder, options, tensors, softmax=softmax, vocabulary=WORDS)
    return folder, options, tensors, softmax


@pytest.fixture(scope="module")
def contents(legacy_model):
    return read_model(legacy_model[0])


@pytest.fixture(scope="module")
def scorer(contents):
    return Model(contents, tokenizer="whitespace")


def log_softmax_by_hand(vectors, softmax):
    logits = vectors @ softmax[0].T.astype(float) + softmax[1]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def score_by_hand(options, tensors, softmax, sentence):
    """The definition: read one token after the other, each time ask for the next one."""
    bounded = ["<S>", *sentence, "</S>"]
    numbers = [WORDS.index(w) if w in WORDS else WORDS.index("<UNK>") for w in bounded]
    x = np.stack([reference.encode_token(options, tensors, w) for w in bounded])
    found = []
    for direction, (vectors, read) in enumerate(((x, numbers), (x[::-1], numbers[::-1]))):
        state = reference.zero_state(options)[direction]
        top = reference.run_direction(options, tensors, direction, vectors, state)[0][-1]
        log_p = log_softmax_by_hand(top, softmax)
        found.append([log_p[k, read[k + 1]] for k in range(len(read) - 1)])
    forward, backward = found  # backward in its reading order: last token first, <S> at the end
    return forward, [*backward[-2::-1], backward[-1]]


def test_equals_the_oracle(legacy_model, scorer):
    found = list(scorer.score(SENTENCES))
    assert [list(s.tokens) for s in found] == SENTENCES
    for scored, sentence in zip(found, SENTENCES, strict=True):
        if not sentence:
            continue
        forward, backward = score_by_hand(*legacy_model[1:], sentence)
        np.testing.assert_allclose(scored.forward, forward, rtol=0, atol=BOUND)
        np.testing.assert_allclose(scored.backward, backward, rtol=0, atol=BOUND)
        assert scored.log_probability == pytest.approx((sum(forward), sum(backward)), abs=5 * BOUND)
    assert found[2].unknown.tolist() == [False, True, False]


def test_fit_is_what_both_sides_add_to_the_word_alone(scorer, contents, monkeypatch):
    """Against its definition: p(w | before) p(w | after) / p(w) over all words w, then / p(w)."""
    monkeypatch.setattr(scoring_module, "PREDICTIONS", 9)
    monkeypatch.setattr(batching, "BATCH_TOKENS", 9)
    prior = torch.log_softmax(contents.softmax.bias, dim=0).double().numpy()
    for scored in scorer.score(SENTENCES, fit=True):
        assert scored.fit.shape == (len(scored.tokens),)
        for place, token in enumerate(scored.tokens):
            tried = [(*scored.tokens[:place], w, *scored.tokens[place + 1 :]) for w in WORDS]
            there = list(scorer.score(tried))
            both = np.array([s.forward[place] + s.backward[place] for s in there]) - prior
            both -= np.log(np.exp(both).sum())
            number = scorer.vocabulary.number(token)
            assert scored.fit[place] == pytest.approx(both[number] - prior[number], abs=4 * BOUND)


def test_the_least_expected_fit_least(scorer):
    (scored,) = scorer.score(["the cat sat ."], fit=True)
    order = sorted(range(4), key=lambda place: scored.fit[place])
    assert least_expected(scored, 2) == order[:2]
    assert least_expected(scored, 9) == order
    (without,) = scorer.score(["the cat sat ."])
    assert without.fit is None
    with pytest.raises(ConfigError, match="scored without `fit`"):
        least_expected(without, 1)


def test_a_sentence_without_tokens_has_no_predictions(scorer):
    (found,) = scorer.score([""])
    assert found.tokens == ()
    assert found.forward.shape == found.backward.shape == found.unknown.shape == (0,)


def test_all_that_can_stand_at_a_place_has_probability_one(scorer):
    after = [s.forward[2] for s in scorer.score([["the", "cat", w, "."] for w in WORDS])]
    before = [s.backward[1] for s in scorer.score([["the", w, "sat", "."] for w in WORDS])]
    assert np.exp(after).sum() == pytest.approx(1, abs=BOUND)
    assert np.exp(before).sum() == pytest.approx(1, abs=BOUND)


def test_forward_knows_nothing_of_what_follows_nor_backward_of_what_precedes(scorer):
    one, other = scorer.score([["the", "cat", "sat", "."], ["the", "cat", "a", "cat"]])
    assert one.forward[:2] == pytest.approx(other.forward[:2], abs=BOUND)
    assert one.backward[0] != pytest.approx(other.backward[0], abs=BOUND)
    one, other = scorer.score([["the", "cat", "sat", "."], ["a", "a", "sat", "."]])
    assert one.backward[2:4] == pytest.approx(other.backward[2:4], abs=BOUND)
    assert one.forward[2] != pytest.approx(other.forward[2], abs=BOUND)


def test_order_company_and_batch_borders_do_not_matter(scorer, monkeypatch):
    sentences = [s[:n] for s in SENTENCES for n in range(5)] * 3
    whole = list(scorer.score(sentences))
    monkeypatch.setattr(scoring_module, "PREDICTIONS", 5)
    monkeypatch.setattr(batching, "BATCH_TOKENS", 5)
    for one, other in zip(whole, scorer.score(iter(sentences)), strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.forward, other.forward, atol=BOUND)
        np.testing.assert_allclose(one.backward, other.backward, atol=BOUND)


def test_a_stream_is_read_as_it_is_used(scorer, monkeypatch):
    endless = itertools.repeat(["the", "cat"])
    assert len(list(itertools.islice(scorer.score(endless), 100))) == 100


def test_perplexity_of_a_model_that_knows_nothing_is_the_size_of_its_vocabulary(contents):
    blank = Softmax(torch.zeros(len(WORDS), 4), torch.zeros(len(WORDS)))
    found = Model(replace(contents, softmax=blank)).perplexity(["the cat sat", "the dog"])
    assert found.forward == pytest.approx(len(WORDS), rel=1e-6)
    assert found.backward == pytest.approx(len(WORDS), rel=1e-6)
    assert found.average == pytest.approx(len(WORDS), rel=1e-6)
    assert (found.tokens, found.unknown) == (7, 1)


def test_perplexity_is_the_exponential_of_the_mean(legacy_model, scorer):
    by_hand = [score_by_hand(*legacy_model[1:], s) for s in SENTENCES if s]
    forward, backward = (
        math.exp(-np.mean(np.concatenate([pair[way] for pair in by_hand]))) for way in range(2)
    )
    found = scorer.perplexity(SENTENCES)
    assert found.forward == pytest.approx(forward, rel=BOUND)
    assert found.backward == pytest.approx(backward, rel=BOUND)
    assert found.average == pytest.approx((forward + backward) / 2, rel=BOUND)
    assert (found.tokens, found.unknown) == (5 + 4 + 2, 1)


def test_a_softmax_in_half_precision_will_do(contents):
    half = Softmax(contents.softmax.weight.half(), contents.softmax.bias.half())
    whole, found = (
        Model(replace(contents, softmax=s)).perplexity(["the cat sat"])
        for s in (contents.softmax, half)
    )
    assert found.forward == pytest.approx(whole.forward, rel=1e-2)


def test_an_absurdly_bad_model_has_a_finite_perplexity(contents):
    bias = torch.zeros(len(WORDS))
    bias[0] = 1e6
    softmax = Softmax(torch.zeros(len(WORDS), 4), bias)
    assert Model(replace(contents, softmax=softmax)).perplexity(["a a a"]).forward == math.exp(700)


def test_a_model_without_softmax_says_what_to_do(contents, tiny_contents):
    with pytest.raises(FormatError, match=r"has no softmax.*Fine-tune it on text"):
        Model(tiny_contents).score(["a"])
    with pytest.raises(FormatError, match="has no vocabulary"):
        Model(replace(contents, vocabulary=None)).score(["a"])


def test_mistakes(scorer):
    with pytest.raises(DataError, match="no token to measure"):
        scorer.perplexity(["", " "])
    with pytest.raises(DataError, match="Put it into a list"):
        scorer.score("the cat")
    with pytest.raises(DataError, match="A sentence is a string"):
        list(scorer.score([b"the cat"]))


def test_a_literal_unknown_word_counts_as_unknown(scorer):
    (found,) = scorer.score([["<UNK>", "cat"]])
    assert found.unknown.tolist() == [True, False]


def test_a_long_sentence_is_compared_in_parts(contents, monkeypatch):
    vocabulary = Vocabulary((*WORDS, *map(str, range(2000))))
    softmax = Softmax(torch.randn(len(vocabulary), 4), torch.zeros(len(vocabulary)))
    scorer = Model(replace(contents, vocabulary=vocabulary, softmax=softmax))
    sentence = [str(i % 2000) for i in range(3000)]
    (whole,) = scorer.score([sentence])
    monkeypatch.setattr(scoring_module, "PREDICTIONS", 700)
    monkeypatch.setattr(batching, "BATCH_TOKENS", 700)
    (parts,) = scorer.score([sentence])
    assert whole.forward.shape == (3001,)
    np.testing.assert_allclose(parts.forward, whole.forward, atol=1e-4)
    np.testing.assert_allclose(parts.backward, whole.backward, atol=1e-4)


# ---- the verbs ----------------------------------------------------------------------------------


@pytest.fixture
def run(legacy_model, tmp_path):
    app = typer.Typer()
    app.command("perplexity")(perplexity_verb)
    app.command("score")(score_verb)
    (tmp_path / "text.txt").write_text(TEXT)

    def run(*arguments, **options):
        arguments = [str(a) for a in (*arguments, "-m", legacy_model[0])]
        result = CliRunner().invoke(app, [*arguments, "--tokenizer", "whitespace"], **options)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_perplexity_verb(run, scorer, tmp_path):
    expected = scorer.perplexity(SENTENCES)
    found = json.loads(run("perplexity", tmp_path / "text.txt", "--json"))
    assert list(found) == ["forward", "backward", "average", "tokens", "unknown"]
    assert found["forward"] == pytest.approx(expected.forward)
    assert found["tokens"] == 11
    assert json.loads(run("perplexity", "-", "--json", input=TEXT)) == pytest.approx(found)
    table = dict(line.split() for line in run("perplexity", tmp_path / "text.txt").splitlines())
    assert table["forward"] == f"{expected.forward:.2f}"
    assert (table["tokens"], table["unknown"]) == ("11", "1")


def test_prose_is_split_into_sentences(run, tmp_path):
    (tmp_path / "prose.txt").write_text("the cat sat . The\ncat saw a bird .\n\nthe bird\n")
    (tmp_path / "lines.txt").write_text("the cat sat .\nThe cat saw a bird .\nthe bird\n")
    for verb in (["perplexity", "--json"], ["score", "--least", 1]):
        split = run(*verb, tmp_path / "prose.txt", "--prose", "--language", "en")
        assert split == run(*verb, tmp_path / "lines.txt")


def test_score_verb_prints_a_json_object_a_line(run, scorer, tmp_path):
    found = [
        json.loads(line) for line in run("score", tmp_path / "text.txt", "--json").split("\n")[:-1]
    ]
    assert [row["line"] for row in found] == [1, 2, 3, 4]
    assert [row["tokens"] for row in found] == SENTENCES
    for row, expected in zip(found, scorer.score(SENTENCES), strict=True):
        assert row["forward"] == pytest.approx(expected.forward.tolist())
        assert row["backward"] == pytest.approx(expected.backward.tolist())
        assert row["log_probability"]["backward"] == pytest.approx(sum(row["backward"]))
    assert found[1]["perplexity"] == {"forward": None, "backward": None, "average": None}
    mean = -sum(found[0]["forward"]) / 5
    assert found[0]["perplexity"]["forward"] == pytest.approx(math.exp(mean))
    assert found[2]["unknown"] == [False, True, False]


def test_score_verb_prints_a_table(run, scorer):
    rows = [line.split("\t") for line in run("score", "-", input="the zebra\n\n").split("\n")]
    (expected,) = scorer.score(["the zebra"])
    assert rows[0] == ["line 1", "forward", "backward"]
    assert rows[1] == ["the", f"{expected.forward[0]:.4f}", f"{expected.backward[0]:.4f}"]
    assert rows[2][0::3] == ["zebra", "unknown"]
    assert rows[3] == ["</S>", f"{expected.forward[2]:.4f}"]
    assert rows[4] == ["<S>", "", f"{expected.backward[2]:.4f}"]
    assert rows[5] == ["sum", *(f"{value:.4f}" for value in expected.log_probability)]
    assert rows[6][0] == "perplexity"
    assert rows[7:] == [[""], ["line 2", "forward", "backward"], [""], [""]]


def test_score_verb_marks_the_least_expected(run, scorer):
    text = "  the cat  sat .\n\na\n"
    (scored,) = scorer.score(["the cat sat ."], fit=True)
    first, second = least_expected(scored, 2)
    words = ["the", "cat", "sat", "."]
    expected = [f"[{w}]" if i in (first, second) else w for i, w in enumerate(words)]
    shown = run("score", "-", "--least", 2, input=text)
    assert shown == "  {} {}  {} {}\n\n[a]\n".format(*expected)
    lines = run("score", "-", "--least", 2, "--json", input=text).splitlines()
    row, blank, _ = map(json.loads, lines)
    assert row["least"] == [first, second]
    assert row["fit"] == pytest.approx(scored.fit.tolist(), abs=4 * BOUND)
    assert blank["least"] == blank["fit"] == []
    assert "fit" not in json.loads(run("score", "-", "--json", input="a\n"))


def test_marks_have_colour_on_a_terminal(scorer, monkeypatch):
    (scored,) = scorer.score(["the cat"], fit=True)
    (place,) = least_expected(scored, 1)
    line = ScoredLine(1, "the cat", scored, least=(place,))
    monkeypatch.setattr("sys.stdout", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert f"\x1b[1m{scored.tokens[place]}\x1b[0m" in mark_words(line)
    monkeypatch.setenv("NO_COLOR", "1")
    assert f"[{scored.tokens[place]}]" in mark_words(line)


def test_verbs_say_when_there_is_no_softmax(tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "without")
    (tmp_path / "text.txt").write_text(TEXT)
    app = typer.Typer()
    app.command("score")(score_verb)
    app.command("perplexity")(perplexity_verb)
    for verb in (["score"], ["score", "--least", "1"], ["perplexity"]):
        arguments = [*verb, str(tmp_path / "text.txt"), "-m", str(tmp_path / "without")]
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, FormatError)
        assert "has no softmax" in str(result.exception)
