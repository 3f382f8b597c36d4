"""The benchmarks that judge a model, at toy size: they end, and their numbers are of something."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from relmo.errors import ConfigError
from relmo.formats import native
from relmo.text.blocks import Blocks
from relmo.text.shards import prepare_corpus

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WORDS = " ".join(topics[name] for name in sorted(topics)).split()


@pytest.fixture
def race(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import thirty_minutes

    return thirty_minutes


def write_lines(path, words):
    lines = (" ".join(words[start : start + 12]) for start in range(0, len(words), 12))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def parts(tmp_path):
    """Options for a treebank in which a dozen words, one of them never met, tell their tags."""
    frequent = [word for word, _ in Counter(w for w in WORDS if w.isalpha()).most_common(11)]
    tags = {word: ("NOUN", "VERB", "ADJ")[i % 3] for i, word in enumerate([*frequent, "unheard"])}
    rng, options = np.random.default_rng(0), []
    for name, n_sentences in (("train", 300), ("dev", 60), ("test", 60)):
        drawn = [rng.choice(list(tags), 9).tolist() for _ in range(n_sentences)]
        sentences = (
            "".join(f"{i}\t{w}\t_\t{tags[w]}" + "\t_" * 6 + "\n" for i, w in enumerate(words, 1))
            for words in drawn
        )
        path = tmp_path / f"{name}.conllu"
        path.write_text("\n".join(sentences), encoding="utf-8")
        options += [f"--{name}", path]
    return options


def run_benchmark(name, *arguments, folder):
    run = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    environment = os.environ | {"RELMO_CACHE": str(folder / "cache")}
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_race(parts, tmp_path):
    pytest.importorskip("transformers", reason="needs transformers, for BERT")
    text = write_lines(tmp_path / "text", WORDS[:20_000])
    race = [text, "-o", tmp_path / "race", *parts, "--minutes", 0.06, "--sequences", 4]
    race += ["--preset", "tiny", "--set", "data.lines=true", "--set", "model.tokenizer=whitespace"]
    race += ["--epochs", 20]
    shown = run_benchmark("thirty_minutes.py", *race, folder=tmp_path)
    assert shown.split()[:2] == ["relmo", "bert"]
    for name in ("relmo", "bert"):
        found = json.loads((tmp_path / "race" / f"{name}.json").read_text())
        assert 2 < found["valid_loss"] < 9
        best = found["probe"]["names"].index(found["probe"]["best"])
        assert 90 < found["probe"]["test"][best] <= 100
        assert f"{found['probe']['test'][best]:.2f}" in shown


@pytest.mark.slow
def test_baselines_of_the_probe(parts, tiny_contents, tmp_path):
    pytest.importorskip("gensim", reason="needs gensim, for fastText")
    native.write(tiny_contents, tmp_path / "model")
    rows = [f"{word} {len(word)} {int(word[0].isupper())}" for word in dict.fromkeys(WORDS[:99])]
    (tmp_path / "glove.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    text = write_lines(tmp_path / "text", WORDS[:20_000])
    command = [*parts, "-m", tmp_path / "model", "--static", tmp_path / "glove.txt"]
    command += ["--text", text, "--lines", "--dim", 64, "--threads", 1]
    command += ["--epochs", 20, "--json", tmp_path / "found.json"]
    shown = run_benchmark("probe_baselines.py", *command, folder=tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found) == ["model", "untrained", "glove.txt", "fastText"]
    assert found["model"]["names"] == found["untrained"]["names"]
    assert found["model"]["dev"] != found["untrained"]["dev"]
    assert found["fastText"]["test"][0] > 80
    assert all(f"{score:.2f}" in shown for result in found.values() for score in result["test"])


def test_a_missing_package_is_told_before_anything_runs(race, monkeypatch):
    monkeypatch.setattr(race, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="transformers, which is not installed"):
        race.race(SimpleNamespace(only=None))


class Halves:
    """Cuts every word in two, and numbers what it finds."""

    def __init__(self):
        self.numbers = {}

    def encode_batch(self, words):
        cut = [[w[: len(w) // 2], w[len(w) // 2 :]] if len(w) > 1 else [w] for w in words]
        numbers = [[self.numbers.setdefault(p, 5 + len(self.numbers)) for p in c] for c in cut]
        return [SimpleNamespace(ids=ids) for ids in numbers]


def test_sequences_hold_the_text_of_their_blocks(race, tmp_path):
    path = write_lines(tmp_path / "text", WORDS[:4000])
    corpus = prepare_corpus(
        [str(path)], tokenizer="whitespace", lines=True, language="en", cache=tmp_path, workers=1
    )
    blocks, _ = Blocks.of(corpus).hold_out(0.2, 800, 0)
    halves = Halves()
    sequences = race.build_sequences(halves, blocks)
    assert (sequences[:, 0] == race.START).all()
    pieces = {number: piece for piece, number in halves.numbers.items()} | {race.END: "\n"}
    found = "".join(pieces[number] for number in sequences[:, 1:].ravel())
    lines = (s for b in range(len(blocks.table)) for s in blocks.sentences(b))
    expected = "".join("".join(tokens) + "\n" for tokens in lines)
    assert expected.startswith(found)
    assert len(expected) - len(found) < 20 * race.LENGTH


def test_a_share_is_masked_and_marks_never_are(race):
    batch = torch.randint(5, 1000, (200, race.LENGTH), generator=torch.Generator().manual_seed(0))
    batch[:, 0] = race.START
    read, places = race.mask_pieces(batch, 1000, torch.Generator().manual_seed(1))
    assert not places[:, 0].any()
    assert (read[~places] == batch[~places]).all()
    assert places.float().mean().item() == pytest.approx(race.MASKED, abs=0.01)
    assert (read[places] == race.MASK).float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert (read[places] == batch[places]).float().mean().item() == pytest.approx(0.1, abs=0.02)


def test_long_sentences_are_cut_between_words(race):
    words = [[5] * n for n in (100, 30, 90, 6, 126, 1)]
    windows = race.cut_windows(words)
    assert [word for window in windows for word in window] == words
    assert [sum(map(len, window)) for window in windows] == [100, 126, 126, 1]


@pytest.mark.slow
def test_a_words_vector_is_the_mean_of_its_pieces_whatever_stands_beside(race):
    pytest.importorskip("transformers", reason="needs transformers, for BERT")
    rng = np.random.default_rng(0)
    bert = race.build_bert(60).eval()
    windows = [
        [rng.integers(5, 60, n).tolist() for n in sizes] for sizes in ([2, 1, 3], [1], [4] * 9)
    ]
    for window, found in zip(windows, race.read_windows(bert, windows), strict=True):
        flat = [race.START, *(piece for pieces in window for piece in pieces), race.END]
        with torch.no_grad():
            states = bert.model(torch.tensor([flat]), output_hidden_states=True).hidden_states
        assert found.shape == (len(states), len(window), race.DIM)
        place = 1
        for number, pieces in enumerate(window):
            for layer, state in enumerate(states):
                expected = state[0, place : place + len(pieces)].mean(0).numpy()
                assert np.allclose(found[layer, number], expected, atol=1e-5)
            place += len(pieces)
