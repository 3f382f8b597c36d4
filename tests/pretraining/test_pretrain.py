"""Pre-training from text to model: it learns, stops and goes on, and leaves what it promises."""

import gzip
import json
import math
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import close
from runs import (
    SMALL,
    WORDS,
    assert_same_checkpoint,
    command,
    last_checkpoint,
    rows_without_times,
    run_program,
    settings,
    write_lines,
)

import relmo
from relmo.errors import TrainingError
from relmo.formats import read_model
from relmo.presets import parse_toml
from relmo.pretraining import pretrain
from relmo.text import shards
from relmo.text.vocabulary import SPECIAL, build_vocabulary
from relmo.train.log import read_metrics

pytestmark = pytest.mark.slow


def train(run, *texts, more=(), **options):
    """Train a small model in this process."""
    cache = run.parent / "cache"
    names = [str(text) for text in texts]
    given = [*SMALL, *more]
    return pretrain(run, names, preset="tiny", settings=given, cache=cache, **options)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run of three epochs, with a text to validate on."""
    folder = tmp_path_factory.mktemp("base")
    text = write_lines(folder / "text.txt", 60)
    valid = write_lines(folder / "valid.txt", 20, skipped=600)
    train(folder / "run", text, valid=[str(valid)], more=["train.epochs=3"])
    return folder


# ---- it learns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_lines", "more"),
    [
        (13, ["data.batch_tokens=400", "train.learning_rate=0.03", "train.epochs=150"]),
        # One long sentence: validation starts from nothing where a stream remembers the one before.
        (1, ["data.layout=stream", "data.n_streams=4", "data.n_steps=25"]),
    ],
    ids=["segments", "stream"],
)
def test_a_page_is_learned_by_heart(tmp_path, n_lines, more):
    page = write_lines(tmp_path / "page.txt", n_lines, n_words=299 // n_lines)
    recipe = ["train.learning_rate=0.02", "train.decay=linear", "train.epochs=110"]
    recipe += ["objective.n_samples=0", "objective.dropout=0", "train.validate_every=1000"]
    recipe += ["model.tokenizer=whitespace", "data.lines=true", "data.segment_tokens=400"]
    recipe += ["train.warmup=0", "train.clip_norm=10"]
    options = {"valid": [str(page)], "cache": tmp_path / "cache", "settings": [*recipe, *more]}
    outcome = pretrain(tmp_path / "run", [str(page)], preset="tiny", **options)
    done = run_program("perplexity", page, "-m", tmp_path / "run" / "model", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == 299 + n_lines
    for way in ("forward", "backward", "average"):
        assert found[way] < 1.5
        assert outcome.best[f"{way}_perplexity"] < 1.5
        if "data.layout=stream" not in more:  # there the state is carried on in validation too
            assert found[way] == pytest.approx(outcome.best[f"{way}_perplexity"], rel=1e-5)


# ---- it stops and goes on -----------------------------------------------------------------------


def stop_after(run, n_rows, number, arguments):
    """Start the program, send it a signal once it has written so many rows, and a little later."""
    with subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True) as process:
        metrics, deadline = run / "metrics.jsonl", time.monotonic() + 100
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= n_rows:
                break
            time.sleep(0.002)
        time.sleep(random.random() * 0.05)  # anywhere within a step
        process.send_signal(number)
        _, errors = process.communicate(timeout=100)
    return process.returncode, errors


@pytest.mark.parametrize("layout", ["segments", "stream"])
def test_killed_or_stopped_it_goes_on_bit_for_bit(tmp_path, layout):
    """kill -9, SIGTERM and Ctrl-C, one after the other, each at a step that nobody chose."""
    text, valid = write_lines(tmp_path / "text.txt", 150), write_lines(tmp_path / "v.txt", 10)
    arguments = ["pretrain", "--cache", tmp_path / "cache", "--threads", "1"]
    # Saved after every step; rows every ten, of 90 or so.
    changes = settings(f"data.layout={layout}", "train.checkpoint_minutes=1e-9")
    first = [text, "--valid", valid, "--preset", "tiny", "--epochs", "6", *changes]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = run_program(*arguments, *first, "-o", whole)
    assert done.returncode == 0, done.stderr
    n_rows = len(read_metrics(whole / "metrics.jsonl"))
    assert n_rows >= 8

    chance = random.Random()  # the outcome must not depend on it
    killed, errors = stop_after(
        parts, chance.randint(1, 2), signal.SIGKILL, [*arguments, *first, "-o", parts]
    )
    assert (killed, errors) == (-9, "")
    for number, rows in ((signal.SIGTERM, (3, 4)), (signal.SIGINT, (5, 6))):
        resumed = [*arguments, "-o", parts, "--resume"]
        code, errors = stop_after(parts, chance.randint(*rows), number, resumed)
        assert code == 128 + number, errors
        step = last_checkpoint(parts).values["step"]
        assert errors.startswith(f"Error: Interrupted ({number.name}) after step {step};")
        assert "Resume the run to continue. Options: --resume." in errors
        assert errors.count("\n") == 1
        assert relmo.load(parts / "model").embed("two words").shape == (2, 16)
    done = run_program(*arguments, "-o", parts, "--resume")
    assert done.returncode == 0, done.stderr

    assert_same_checkpoint(whole, parts)
    assert rows_without_times(whole) == rows_without_times(parts)
    models = [(run / "model" / "model.safetensors").read_bytes() for run in (whole, parts)]
    assert models[0] == models[1]


def test_a_breakdown_names_the_checkpoint_to_go_on_from(tmp_path, base):
    text, valid = base / "text.txt", base / "valid.txt"
    run = tmp_path / "run"
    train(run, text, valid=[str(valid)], more=["train.epochs=1"])
    good = last_checkpoint(run)
    more = ["train.epochs=4", "train.learning_rate=1e30", "train.clip_norm=none"]
    cache = tmp_path / "cache"
    with pytest.raises(TrainingError, match="Training broke down") as error:
        pretrain(run, resume=True, settings=more, cache=cache)
    last = run / "checkpoints" / "last.safetensors"
    assert f"The last good checkpoint is {last}." in str(error.value)
    assert "train.learning_rate" in str(error.value)
    assert last_checkpoint(run).values == good.values
    calm = ["train.epochs=4", "train.learning_rate=0.001"]
    assert pretrain(run, resume=True, settings=calm, cache=cache).reason == "epochs"


def test_averages_by_epochs_and_plateaus_are_exported_and_leave_torch_alone(tmp_path, base):
    text, valid = base / "text.txt", base / "valid.txt"
    more = ["train.ema=0.9", "train.validate_epochs=1", "train.decay=plateau", "train.epochs=2"]
    more += ["train.clip_value=0.5", "train.plateau_patience=1"]
    torch.manual_seed(12)
    expected = torch.rand(3)
    torch.manual_seed(12)
    outcome = train(tmp_path / "run", text, valid=[str(valid)], more=more)
    assert torch.equal(torch.rand(3), expected)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "valid_loss" in row] == [7, 14]
    done = run_program("perplexity", valid, "-m", tmp_path / "run" / "model", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for way in ("forward", "backward"):  # the model has the weights that were validated
        assert found[way] == pytest.approx(outcome.best[f"{way}_perplexity"], rel=1e-4)


# ---- it goes on from a model --------------------------------------------------------------------


def test_published_weights_learn_a_new_text_and_go_back_to_their_format(tmp_path, elmo_fixtures):
    text = write_lines(tmp_path / "text.txt", 60)
    valid = write_lines(tmp_path / "valid.txt", 10, skipped=60)  # of the text
    more = ["train.epochs=12", "train.learning_rate=0.03", "objective.n_samples=0"]
    more += ["train.validate_every=10"]
    settings = [s for s in [*SMALL, *more] if not s.startswith("model.")]
    init = elmo_fixtures / "allennlp"
    values = {"model.tokenizer": "whitespace"}
    options = {"init": init, "valid": [str(valid)], "cache": tmp_path / "cache", "values": values}
    pretrain(tmp_path / "run", [str(text)], preset="tiny", settings=settings, **options)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    scores = [row["average_perplexity"] for row in rows if "average_perplexity" in row]
    words = text.read_text().split()
    counts = Counter(words)
    by_frequency = math.exp(-sum(math.log(counts[w] / len(words)) for w in words) / len(words))
    assert scores[-1] < 0.8 * min(scores[0], by_frequency)

    trained = relmo.load(tmp_path / "run" / "model")
    before, after = (read_model(m).tensors for m in (init, tmp_path / "run" / "model"))
    assert before.keys() == after.keys()
    assert not any(torch.equal(tensor, after[name]) for name, tensor in before.items())
    back = tmp_path / "back"
    done = run_program("convert", tmp_path / "run" / "model", back, "--to", "bilm-tf")
    assert done.returncode == 0, done.stderr
    sentences = [line.split() for line in valid.read_text().splitlines()]
    found = relmo.load(back).embed(sentences, layers="all")
    for ours, theirs in zip(trained.embed(sentences, layers="all"), found, strict=True):
        assert close(theirs, ours)


def test_a_lexicon_is_made_of_the_text_and_the_same_when_it_goes_on(tmp_path):
    """The recipe for Chinese, of few weights, with words as well as characters."""
    lines = ["宋江 见 吴用 。", "吴用 道 ： 宋江 。", "宋江 大 喜 。"] * 20
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    settings = [s for s in SMALL if not s.startswith("model.encoder.filters")]
    settings += ["model.encoder.filters=[[1, 8], [2, 8]]", "data.valid_share=0.2"]
    settings += ["model.encoder.n_words=9", "model.encoder.word_dim=3", "train.validate_every=5"]
    run, options = tmp_path / "run", {"cache": tmp_path / "cache"}
    texts = [str(tmp_path / "text.txt")]
    begun = [*settings, "train.max_tokens=400", "train.epochs=none"]
    first = pretrain(run, texts, preset="chinese", settings=begun, **options)
    before = read_model(run / "model")
    assert before.lexicon.characters[6:9] == ("。", "宋", "江")
    assert len(before.lexicon.characters) == before.config.encoder.n_characters == 6 + 10
    assert before.lexicon.words[:3] == ("<oov>", "。", "宋江")
    more = ["train.max_tokens=2000"]
    last = pretrain(run, [], settings=more, resume=True, **options)
    assert read_model(run / "model").lexicon == before.lexicon
    assert last.best["average_perplexity"] < first.best["average_perplexity"]
    assert relmo.load(run / "model").embed([["宋江", "鲁智深"]])[0].shape == (2, 16)


def test_a_model_with_its_softmax_begins_where_it_ended(tmp_path, base):
    text = write_lines(tmp_path / "text.txt", 40, skipped=3000)
    more = ["train.max_tokens=1", "train.learning_rate=1e-12", "data.case_noise=0.25"]
    settings = [s for s in [*SMALL, *more] if not s.startswith("model.")]
    options = {"init": base / "run" / "model", "valid": [str(base / "valid.txt")]}
    options |= {"cache": tmp_path / "cache", "settings": settings, "preset": "tiny"}
    outcome = pretrain(tmp_path / "run", [str(text)], **options)
    expected = last_checkpoint(base / "run").values["best"]
    for way in ("forward", "backward", "average"):
        key = f"{way}_perplexity"
        assert outcome.best[key] == pytest.approx(expected[key], rel=1e-4)
    ours, theirs = (read_model(f / "run" / "model") for f in (tmp_path, base))
    assert ours.vocabulary == theirs.vocabulary
    assert "case noise 0.25" in ours.facts["recipe"]
    assert "went on from" not in theirs.facts
    before = [theirs.origin, theirs.facts["trained"], theirs.facts["recipe"]]
    assert ours.facts["went on from"] == "; ".join(before)


def test_another_vocabulary_keeps_the_rows_of_common_words(tmp_path, base):
    before = read_model(base / "run" / "model")
    text = write_lines(tmp_path / "text.txt", 100)  # more than the model has seen
    counts = Counter(text.read_text().split())
    words = build_vocabulary(counts, 200, 1).words
    common = set(words) & set(before.vocabulary.words)
    assert 100 < len(common) < len(words) < len(before.vocabulary)
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    more = ["train.max_tokens=1", "train.learning_rate=1e-12"]
    settings = [s for s in [*SMALL, *more] if not s.startswith("model.")]
    options = {"init": base / "run" / "model", "valid": [str(text)], "preset": "tiny"}
    options |= {"cache": tmp_path / "cache", "settings": settings}
    pretrain(tmp_path / "run", [str(text)], vocabulary=tmp_path / "words.txt", **options)
    after = read_model(tmp_path / "run" / "model")
    assert after.vocabulary.words == words
    for word in common:
        old, new = before.vocabulary.number(word), after.vocabulary.number(word)
        assert torch.allclose(after.softmax.weight[new], before.softmax.weight[old], atol=1e-6)
        assert torch.allclose(after.softmax.bias[new], before.softmax.bias[old], atol=1e-6)


# ---- what it leaves -----------------------------------------------------------------------------


def test_the_run_directory(base):
    run = base / "run"
    names = {path.name for path in run.iterdir()} - {".lock"}
    files = {"config.toml", "environment.json", "inputs.json", "metrics.jsonl"}
    assert names == files | {"checkpoints", "model", "curve.svg", "curve.png"}
    assert {p.name for p in (run / "checkpoints").iterdir()} == {
        "last.safetensors",
        "best.safetensors",
    }
    config = parse_toml((run / "config.toml").read_text(), "a test")
    assert (config.train.epochs, config.model.lstm.cell_dim) == (3, 12)
    environment = json.loads((run / "environment.json").read_text())
    assert {"relmo", "torch", "python", "command", "started", "lstm_cell"} < environment.keys()
    assert environment["world_size"] == 1
    inputs = json.loads((run / "inputs.json").read_text())
    assert inputs["texts"] == [str(base / "text.txt")]
    assert inputs["valid"] == [str(base / "valid.txt")]
    assert (run / "curve.svg").read_text().lstrip().startswith("<?xml")
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_metrics(base):
    rows = read_metrics(base / "run" / "metrics.jsonl")
    n_epoch = 60 * 13  # a line of 12 words has 13 predictions
    assert [row["step"] for row in rows] == [10, 20, 21]  # 780 tokens are 7 batches of up to 128
    assert rows[-1]["tokens"] == 3 * n_epoch
    for row in rows:
        assert {"step", "tokens", "loss", "words_per_s", "waiting"} <= row.keys()
        assert row["words_per_s"] > 0
    scored = [row for row in rows if "valid_loss" in row]
    assert [row["step"] for row in scored] == [20, 21]
    for row in scored:
        ways = row["forward_perplexity"], row["backward_perplexity"]
        assert row["average_perplexity"] == pytest.approx(sum(ways) / 2)
        assert row["valid_loss"] == pytest.approx(sum(map(math.log, ways)) / 2)


def test_the_model_and_its_card(base):
    model = relmo.load(base / "run" / "model")
    assert model.embed("a statement of the language", layers="all").shape == (3, 5, 16)
    card = (base / "run" / "model" / "README.md").read_text()
    text = (base / "text.txt").read_text().split()
    facts = dict(re.findall(r"^\| (\S.*) \| (.+) \|$", card, re.MULTILINE))
    assert facts["text"] == "text.txt"
    assert facts["sentences"] == "60"
    assert facts["tokens"] == f"720, {len(set(text))} distinct"
    assert facts["vocabulary"].startswith(f"{len(set(text)) + len(SPECIAL)} words, 100.00 %")
    best = last_checkpoint(base / "run").values["best"]
    assert f"tokens in {best['step']:.0f} steps" in facts["trained"]
    assert facts["held-out perplexity"] == ", ".join(
        f"{way} {best[f'{way}_perplexity']:.2f}" for way in ("forward", "backward", "average")
    )


def test_text_is_prepared_once(base, monkeypatch):
    shard_files = sorted((base / "cache").iterdir())

    def refuse(*arguments, **options):
        raise AssertionError("this text was tokenised before")

    monkeypatch.setattr(shards, "read_sentences", refuse)
    train(
        base / "again", base / "text.txt", more=["train.max_tokens=1"], valid=[base / "valid.txt"]
    )
    assert sorted((base / "cache").iterdir()) == shard_files


def test_some_of_the_text_is_held_out(tmp_path):
    text = write_lines(tmp_path / "text.txt", 1000)  # three blocks or more
    outcome = train(tmp_path / "run", text, more=["train.max_tokens=200", "data.valid_share=0.1"])
    assert outcome.best["average_perplexity"] > 1
    source = [row["tokens"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert source[-1] >= 200


# ---- from where text may come -------------------------------------------------------------------

SENTENCES = [
    f"The {w} number {i} is what it was before." for i, w in enumerate(["cat", "dog"] * 30)
]


def test_the_same_text_from_everywhere_gives_the_same_model(tmp_path):
    """A file, a packed one, a directory, standard input, prose, and one sentence per line."""
    prose = " ".join(SENTENCES)
    wrapped = textwrap.fill(prose, 70) + "\n"
    half = len(SENTENCES) // 2
    (tmp_path / "prose.txt").write_text(wrapped)
    (tmp_path / "lines.txt").write_text("\n\n".join(SENTENCES))
    (tmp_path / "prose.gz").write_bytes(gzip.compress(wrapped.encode()))
    (tmp_path / "folder" / "b").mkdir(parents=True)
    (tmp_path / "folder" / "a.txt").write_text(" ".join(SENTENCES[:half]))
    (tmp_path / "folder" / "b" / "c.txt").write_text(" ".join(SENTENCES[half:]))
    (tmp_path / "folder" / "b" / "empty.txt").write_text("")
    valid = write_lines(tmp_path / "valid.txt", 3)
    more = ["model.tokenizer=words", "train.max_tokens=300", "data.lines=false"]
    names = ["prose.txt", "prose.gz", "folder", "folder/**/*.txt"]
    for i, name in enumerate(names):
        train(tmp_path / f"run{i}", tmp_path / name, valid=[str(valid)], more=more)
    by_line = [*more, "data.lines=true"]
    train(tmp_path / "run4", tmp_path / "lines.txt", valid=[str(valid)], more=by_line)
    flags = ["--preset", "tiny", "--cache", tmp_path / "cache", "--valid", valid]
    done = run_program(
        "pretrain", "-", "-o", tmp_path / "run5", *flags, *settings(*more), input=wrapped
    )
    assert done.returncode == 0, done.stderr
    models = [read_model(tmp_path / f"run{i}" / "model") for i in range(6)]
    assert models[0].facts["sentences"] == str(len(SENTENCES))
    for i, model in enumerate(models):
        assert model.vocabulary == models[0].vocabulary, i
        for name, tensor in model.tensors.items():
            assert torch.allclose(tensor, models[0].tensors[name], rtol=0, atol=1e-6), (i, name)
    assert models[5].facts["text"] == "standard input"


# ---- memory -------------------------------------------------------------------------------------

MEASURED = """
import sys, threading, time
from pathlib import Path
from relmo.pretraining import pretrain

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024

peak = [0.0]
def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.01)

threading.Thread(target=watch, daemon=True).start()
run, text, cache, *settings = sys.argv[1:]
outcome = pretrain(run, [text], preset="tiny", settings=settings, cache=Path(cache))
print(peak[0], outcome.tokens)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_text(tmp_path):
    """Of its own; the shards are mapped, and the system may drop them whenever it likes."""
    rng = random.Random(5)
    words = sorted(set(WORDS))[:2000]
    peaks = []
    more = ["train.max_tokens=5000", "data.vocabulary_size=500", "data.valid_tokens=2000"]
    for n_files in (2, 20):
        folder = tmp_path / str(n_files)
        folder.mkdir()
        for i in range(n_files):  # each more than is prepared in one piece with others
            chosen = rng.choices(words, k=120_000)
            lines = (" ".join(chosen[j : j + 20]) for j in range(0, len(chosen), 20))
            (folder / f"{i}.txt").write_text("\n".join(lines))
        given = [str(tmp_path / f"run{n_files}"), str(folder), str(tmp_path / "cache")]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *given, *SMALL, *more],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        peak, tokens = done.stdout.split()
        assert int(tokens) >= 5000
        peaks.append(float(peak))
    n_bytes = sum(f.stat().st_size for f in (tmp_path / "20").iterdir())
    assert n_bytes > 20e6
    assert peaks[1] < peaks[0] + 6, peaks  # MiB; found 0.6, for 22 more of text
