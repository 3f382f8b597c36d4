"""metrics.jsonl, TensorBoard's files and the learning curve that is drawn from them."""

import builtins
import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError
from relmo.train.curve import draw_curve, smooth
from relmo.train.learner import Metric
from relmo.train.log import MetricsLog, read_metrics, rewind

EXACT = Metric("exact_match", higher_is_better=True)
LOSS = Metric("loss", higher_is_better=False)


def row(step, **more):
    units = {"unit": "questions", "units": 100 * step}
    return {"step": step, **units, "seconds": 6.0 * step, "loss": 9 / step, **more}


def scores(step):
    return {"valid_loss": 10 / step, "exact_match": step / 200}


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(10, 200, 10):
            log.write(row(step, **(scores(step) if step % 50 == 0 else {})))
    return path


@pytest.fixture
def without(monkeypatch):
    """Make an import fail as if the package was not there."""

    def hide(package):
        real = builtins.__import__

        def fails(name, *rest):
            if name.split(".")[0] == package or name == f"torch.utils.{package}":
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", fails)

    return hide


def test_every_row_is_on_disk_before_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (1, 2, 3):
            log.write(row(step))
            assert read_metrics(path) == [row(n) for n in range(1, step + 1)]


@given(
    steps=st.lists(st.integers(1, 30), unique=True).map(sorted),
    kept=st.integers(0, 30),
    cut=st.integers(0, 40),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rewound_as_if_never_interrupted(tmp_path, steps, kept, cut):
    path, whole = tmp_path / "metrics.jsonl", tmp_path / "whole.jsonl"
    for file in (path, whole):
        file.unlink(missing_ok=True)
    with MetricsLog(whole) as log:
        for step in steps:
            log.write(row(step))
    data = whole.read_bytes()
    rest = data[data.rfind(b"\n", 0, -1) + 1 :]
    path.write_bytes(data + rest[: min(cut, len(rest) - 1)] if rest else data)
    with MetricsLog(path, step=kept) as log:
        assert read_metrics(path) == [row(step) for step in steps if step <= kept]
        for step in steps:
            if step > kept:
                log.write(row(step))
    assert path.read_bytes() == whole.read_bytes()


def test_nothing_to_rewind(tmp_path):
    rewind(tmp_path / "metrics.jsonl", 3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["no JSON", "[1]", '{"loss": 1}', ""])
def test_a_damaged_line_is_named(metrics, line):
    lines = metrics.read_text().splitlines()
    lines[3] = line
    metrics.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 4: expected"):
        read_metrics(metrics)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="Cannot read"):
        read_metrics(tmp_path / "nothing.jsonl")


@pytest.mark.slow  # TensorBoard takes seconds to import
def test_tensorboard_shows_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, tensorboard=True) as log:
        for step in (10, 20, 30):
            log.write(row(step))
    with MetricsLog(path, step=20, tensorboard=True) as log:  # what came later never happened
        log.write(row(40))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("loss")}
    assert found == pytest.approx({r["step"]: r["loss"] for r in read_metrics(path)})
    assert set(found) == {10, 20, 40}


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("tensorboard", "tensorboard", lambda m: MetricsLog(m, step=10**6, tensorboard=True)),
        ("matplotlib", "plots", lambda m: draw_curve(m, m.parent, EXACT)),
    ],
)
def test_a_missing_extra_is_named(metrics, without, package, extra, call):
    without(package)
    with pytest.raises(ConfigError, match=rf"{package}, which .* 'relmo\[{extra}\]'"):
        call(metrics)


@pytest.mark.parametrize("metric", [EXACT, LOSS])
def test_the_curve_shows_the_loss_and_what_decides(metrics, tmp_path, metric):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    drawn = []
    for _ in range(2):
        draw_curve(metrics, tmp_path, metric)
        drawn.append([(tmp_path / f"curve.{kind}").read_bytes() for kind in ("svg", "png")])
    assert drawn[0] == drawn[1]
    svg, png = drawn[0]
    assert png.startswith(b"\x89PNG")
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.text]
    assert {"loss", "questions seen", "training", "validation"} <= set(texts)
    assert ("exact match" in texts) == (metric is EXACT)
    assert texts.count("validation") == (2 if metric is EXACT else 1)
    assert "perplexity" not in texts


def test_no_rows_no_curve(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match="no rows yet"):
        draw_curve(tmp_path / "metrics.jsonl", tmp_path, EXACT)


def test_smoothing_keeps_a_line_and_its_length():
    assert smooth([2.0] * 30) == [2.0] * 30
    line = [float(i) for i in range(30)]
    assert smooth(line)[5:25] == line[5:25]
    assert smooth([1.0]) == [1.0]


def test_rows_are_json(metrics):
    for line in metrics.read_text().splitlines():
        assert json.loads(line)["units"] == 100 * json.loads(line)["step"]
