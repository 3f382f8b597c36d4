"""The demonstration: what it says is computed, fits a terminal, and leaves nothing behind."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
import torch
from typer.main import get_command

from relmo.cli import app
from relmo.cli.demo import demo
from relmo.demo import (
    DEFAULT,
    IN_CONTEXT,
    MEANINGS,
    N_NEAREST,
    TO_REPLACE,
    read_sentences,
    tell,
    tokenize,
)
from relmo.demo.chart import BLOCKS, HEIGHT, PLAIN, WIDTH, blocks_for, draw_chart
from relmo.demo.live import RECIPE, read_manual, train_live
from relmo.formats import native
from relmo.formats.contents import Softmax
from relmo.text.marks import parse_marked
from relmo.text.vocabulary import SPECIAL, Vocabulary

AMBIGUOUS = (
    *("present", "left", "light", "watch", "kind", "fair"),
    *("bear", "still", "mean", "spring", "bank"),
)


@pytest.fixture
def model(tiny_contents, tmp_path, monkeypatch):
    """A model directory with a softmax, and no more, in the current one."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    words = {token.text for sentence in read_sentences() for token in tokenize(sentence)}
    vocabulary = Vocabulary((*SPECIAL, *sorted(words)))
    dim = tiny_contents.config.lstm.projection_dim
    softmax = Softmax(torch.randn(len(vocabulary), dim), torch.randn(len(vocabulary)))
    native.write(replace(tiny_contents, vocabulary=vocabulary, softmax=softmax), tmp_path / "model")
    return "model"


@pytest.fixture
def without_softmax(tiny_contents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    native.write(tiny_contents, tmp_path / "without")
    return "without"


def lines_of(model, **options):
    told = tell(model, **{"seconds": 0, "seed": 0, "encoding": "utf-8", **options})
    return [row for line in told for row in line.plain.split("\n")]


def commands_in(lines):
    """What stands after a $, with the lines on which it goes on."""
    whole = "\n".join(lines).replace(" \\\n", "")
    yield from map(shlex.split, re.findall(r"^ +\$ (.+)$", whole, re.MULTILINE))


# ---- the text -----------------------------------------------------------------------------------


def test_the_text_has_words_in_several_meanings():
    sentences = read_sentences()
    counts = Counter(token.text for s in sentences for token in tokenize(s))
    assert 80 <= len(sentences) == len(set(sentences)) <= 120
    assert not [word for word in AMBIGUOUS if counts[word] < 8]  # 4 of each of two meanings
    assert {parse_marked(query, tokenize).word for query in IN_CONTEXT} <= set(AMBIGUOUS)
    assert not [s for s in sentences if len(s) > 66 or not s.isascii() or s != s.strip()]


def test_what_is_asked_is_not_in_the_text():
    asked = [*IN_CONTEXT, *MEANINGS.values()]
    assert not {text.replace("[", "").replace("]", "") for text in asked} & set(read_sentences())


# ---- the story ----------------------------------------------------------------------------------


def test_cosines_are_those_of_the_model(model, tiny):
    shown = re.findall(r"^  layer (\d) +(\S+) +(\S+)$", "\n".join(lines_of(model)), re.MULTILINE)
    marked = [parse_marked(text, tokenize) for text in MEANINGS.values()]
    vectors = tiny.embed([m.tokens for m in marked], layers="all")
    a, b, c = (
        v[:, m.place] / np.linalg.norm(v[:, m.place], axis=1, keepdims=True)
        for v, m in zip(vectors, marked, strict=True)
    )
    expected = [(str(i), f"{a[i] @ b[i]:.3f}", f"{a[i] @ c[i]:.3f}") for i in range(3)]
    assert shown == expected
    assert shown[0] == ("0", "1.000", "1.000")
    assert len({m.word for m in marked}) == 1


def test_occurrences_are_of_the_text_and_marked(model):
    found = [m for line in lines_of(model) if (m := re.fullmatch(r"    (\d\.\d{3})  (.+)", line))]
    assert len(found) == N_NEAREST * len(IN_CONTEXT)
    for match in found:
        assert match[2].replace("[", "").replace("]", "") in read_sentences()
        assert len(re.findall(r"\[\w+\]|\[\W\]", match[2])) == 1


def test_parts_for_a_softmax_need_one(model, without_softmax):
    shown = "\n".join(lines_of(model))
    assert "has no softmax" not in shown
    assert re.search(r"^  \w+ +\d+\.\d% +\w+ +\d+\.\d%$", shown, re.MULTILINE)
    shown = "\n".join(lines_of(without_softmax))
    assert shown.count("has no softmax") == 2
    assert "Next" in shown


def test_commands_exist(model):
    commands = list(commands_in(lines_of(model)))
    assert {c[1] for c in commands} >= {"embed", "neighbours", "substitutes", "score"}
    for name, verb, *arguments in commands:
        assert name == "relmo"
        if verb != "--help":
            with get_command(app).commands[verb].make_context(verb, arguments) as context:
                assert not context.args


def test_lines_fit_and_say_that_sentences_are_english(model, tmp_path):
    (tmp_path / ("long" * 12)).symlink_to("model")
    lines = lines_of("long" * 12)
    assert max(map(len, lines)) <= 80
    assert "".join(lines).isascii()
    assert "sentences are English" in " ".join(lines)
    assert TO_REPLACE["a"] in [word for command in commands_in(lines) for word in command]


def test_by_default_it_is_the_bundled_model_and_tells_meanings_apart():
    assert signature(demo).parameters["model"].default == DEFAULT
    lines = lines_of(DEFAULT)
    commands = list(commands_in(lines))
    assert len(commands) > 3
    assert not [command for command in commands if "-m" in command]
    assert "  The two meanings are told apart by layer 1 and layer 2." in lines
    for query in IN_CONTEXT:
        place = lines.index(f"  {query}")
        (word,) = re.findall(r"\[.+\]", query)
        assert all(word in line for line in lines[place + 1 : place + 1 + N_NEAREST])
    for wrong in ("[potato]", "[river]", "[onion]"):
        assert any(wrong in line for line in lines)


# ---- the chart ----------------------------------------------------------------------------------


def columns(rows):
    cells = [row[9:].ljust(WIDTH) for row in rows[:HEIGHT]]
    return ["".join(column) for column in zip(*cells, strict=True)]


@pytest.mark.parametrize("blocks", [BLOCKS, PLAIN])
def test_the_chart_falls_as_the_curve_does(blocks):
    points = [(float(second), 1000 * 0.8**second) for second in range(20)]
    rows = draw_chart(points, blocks)
    full = [column.count(blocks[-1]) for column in columns(rows)]
    assert full[0] == HEIGHT
    assert full == sorted(full, reverse=True)
    assert columns(rows)[-1] == " " * (HEIGHT - 1) + blocks[-1]
    assert (rows[0].split()[0], rows[HEIGHT - 1].split()[0]) == ("1,000", "14")
    assert rows[-1].split() == ["0", "s", "19", "s"]
    assert set("".join(columns(rows))) <= set(blocks)
    assert max(map(len, rows)) <= 80


def test_a_chart_of_one_point():
    assert len(draw_chart([(1.0, 5.0)])) == HEIGHT + 1


def test_blocks_are_those_that_can_be_written():
    assert blocks_for("utf-8") == BLOCKS
    assert blocks_for("ascii") == blocks_for("latin-1") == PLAIN


# ---- the training -------------------------------------------------------------------------------


def test_the_manual_is_prose_and_each_paragraph_is_there_once():
    paragraphs = read_manual()
    assert len(paragraphs) == len(set(paragraphs)) > 1000
    assert not [p for p in paragraphs if "\n" in p or "  " in p]


@pytest.mark.slow
def test_a_tiny_model_learns_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    at_once = {"data.batch_tokens": 64, "train.warmup": 0, "train.validate_every": 1}
    for name, value in at_once.items():
        monkeypatch.setitem(RECIPE, name, value)
    run = train_live(read_manual()[:100], seconds=2, seed=0)
    assert list(tmp_path.glob("relmo-*")) == []
    assert min(perplexity for _, perplexity in run.curve) < run.curve[0][1]
    assert run.curve[-1][0] >= 2
    assert run.words_per_second > 0


@pytest.mark.slow
def test_stopped_while_it_trains_it_leaves_nothing(model, tmp_path):
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-m", "relmo", "demo", "-m", model, "--seconds", "60"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("temporary/*/run/metrics.jsonl")):
            assert time.monotonic() < deadline, "the training never began"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Stopped" in err
    assert "Traceback" not in err
    assert "Learning, live" in out
    assert list(tmp_path.glob("temporary/relmo-*")) == []
