"""How pre-training reports: columns of metrics.jsonl, the note, curves of perplexity."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from relmo.errors import ConfigError
from relmo.pretraining.learner import BiLmLearner
from relmo.pretraining.report import REPORT, compare_curves, draw_curve, perplexity
from relmo.train.log import MetricsLog
from relmo.train.report import Row


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    names = ("forward_perplexity", "backward_perplexity", "average_perplexity")
    with MetricsLog(path) as log:
        for step in range(10, 200, 10):
            row = {"step": step, "tokens": 100 * step, "seconds": 6.0 * step, "loss": 9 / step}
            scores = {name: 300 / step + n for n, name in enumerate(names)}
            log.write({**row, **(scores if step % 50 == 0 else {})})
    return path


def test_the_columns_are_those_that_there_always_were():
    row = Row(10, 1, "words", 500, 2.5, 3.0, 200.0, 0.01, 0.7, 0.1, {})
    assert list(REPORT.columns(row).items()) == [
        ("step", 10),
        ("epoch", 1),
        ("tokens", 500),
        ("seconds", 2.5),
        ("loss", 3.0),
        ("perplexity", math.exp(3.0)),
        ("words_per_s", 200.0),
        ("learning_rate", 0.01),
        ("gradient_norm", 0.7),
        ("waiting", 0.1),
    ]
    note = REPORT.note(3.0, BiLmLearner.decides, None)
    assert note == "loss 3.000  perplexity 20.1"
    assert math.isfinite(perplexity(1e9))


def test_the_curve_is_drawn_the_same_each_time(metrics, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    drawn = []
    for _ in range(2):
        draw_curve(metrics, tmp_path, training_label="training, sampled")
        drawn.append([(tmp_path / f"curve.{kind}").read_bytes() for kind in ("svg", "png")])
    assert drawn[0] == drawn[1]
    svg, png = drawn[0]
    assert png.startswith(b"\x89PNG")
    texts = {element.text for element in ElementTree.fromstring(svg).iter() if element.text}
    expected = {"perplexity", "words seen", "training, sampled", "validation, forward"}
    assert expected | {"validation, backward"} <= texts
    assert b"<dc:date>" not in svg


@pytest.mark.parametrize("x", ["minutes", "tokens"])
def test_runs_compared(metrics, tmp_path, x):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    compare_curves({"one": metrics, "two": metrics}, tmp_path / "both.svg", x)
    texts = {e.text for e in ElementTree.parse(tmp_path / "both.svg").iter() if e.text}
    assert {"one", "two", {"minutes": "minutes of training", "tokens": "words seen"}[x]} <= texts
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        compare_curves({"one": metrics}, tmp_path / "both.pdf")
