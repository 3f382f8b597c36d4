"""results.json is written, read back and checked; intervals and tables of values."""

import contextlib
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relmo import __version__
from relmo.errors import ConfigError, DataError, FormatError
from relmo.machine import Machine
from relmo.results import (
    MAX_RESULTS_BYTES,
    DataFile,
    Interval,
    Result,
    Value,
    accuracy,
    binomial_interval,
    bootstrap_interval,
    build_result,
    data_identity,
    read_results,
    render_table,
    write_results,
)

MACHINE = Machine("Linux-6.1", "x86_64", "Some CPU", ("avx2",), 2, {"python": "3.11.7"})


def result_of(*values, what="probe", **more):
    return Result(what, values, "relmo probe", "0.1.0", MACHINE, "2025-01-01T00:00:00", 1.5, **more)


# ---- files --------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = texts.filter(bool)
numbers = st.floats(allow_nan=False, allow_infinity=False)
bounds = st.tuples(numbers, numbers).map(sorted)
intervals = st.builds(lambda pair, kind: Interval(*pair, kind), bounds, texts)
values = st.builds(
    Value,
    *(names, numbers, texts),
    row=st.none() | texts,
    group=st.none() | texts,
    interval=st.none() | intervals,
)
results = st.builds(
    Result,
    what=texts,
    values=st.lists(values, unique_by=lambda v: (v.row, v.group, v.name), max_size=5).map(tuple),
    command=texts,
    relmo=texts,
    machine=st.builds(
        Machine,
        *(texts, texts, texts, st.lists(texts, max_size=3).map(tuple), st.integers(0)),
        versions=st.dictionaries(texts, texts, max_size=3),
    ),
    started=texts,
    seconds=numbers,
    seeds=st.lists(st.integers(), max_size=3).map(tuple),
    models=st.dictionaries(texts, texts, max_size=3),
    data=st.lists(st.builds(DataFile, texts, texts, st.integers(0)), max_size=3).map(tuple),
    settings=st.dictionaries(
        texts, st.none() | st.booleans() | st.integers() | numbers | texts, max_size=3
    ),
)


@given(results)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_written_is_read_back(tmp_path, result):
    path = tmp_path / "results.json"
    write_results(result, path)
    read = read_results(path)
    assert read == result
    assert repr(read) == repr(result)  # True is not 1, and 1 is not 1.0
    assert json.loads(path.read_text(encoding="utf-8")) == result.as_dict()


@given(st.data(), results)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_file_is_refused_or_read(tmp_path, data, result):
    path = tmp_path / "results.json"
    write_results(result, path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 2))
    if data.draw(st.booleans()):
        path.write_bytes(content[:place])
        with pytest.raises(FormatError):
            read_results(path)
        return
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(FormatError):  # and no other error
        assert isinstance(read_results(path), Result)


def changed(**more):
    fields = result_of(Value("accuracy", 94.2, "%", interval=Interval(93, 95, "x"))).as_dict()
    return {**fields, **more}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"format_version": NaN}', "not JSON"),
        (b"[]", "no format_version"),
        (changed(format_version="1"), "no format_version"),
        (changed(format_version=True), "no format_version"),
        (changed(format_version=2), "format_version 2.*newer relmo"),
        (changed(more=1), r"more: Unexpected"),
        (changed(seconds="1"), r"seconds: Input should be a valid number"),
        (changed(seeds=[1.5]), r"seeds\.0: Input should be a valid integer"),
        (changed(machine={}), r"machine\.system: Field required"),
        (changed(machine={**MACHINE.as_dict(), "n_cores": "2"}), r"machine\.n_cores"),
        (changed(machine={**MACHINE.as_dict(), "more": 1}), r"machine\.more"),
        (changed(values=[{"value": 1.0}]), r"values\.0\.name: Field required"),
        (changed(values=[{"name": "a", "value": "1"}]), r"values\.0\.value"),
        (changed(values=[{"name": "a", "value": 1, "more": 1}]), r"values\.0\.more"),
        (changed(values=[{"name": "a", "value": 1}] * 2), "more than once"),
        (
            changed(
                values=[{"name": "a", "value": 1, "interval": {"low": 2, "high": 1, "kind": ""}}]
            ),
            "found 2.0 to 1.0",
        ),
        (changed(settings={"a": []}), r"settings\.a"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, content, message):
    path = tmp_path / "results.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(FormatError, match=message) as error:
        read_results(path)
    assert str(path) in str(error.value)


def test_what_is_no_file_of_results(tmp_path):
    with pytest.raises(FormatError, match="Cannot read"):
        read_results(tmp_path / "results.json")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MAX_RESULTS_BYTES + 1)
    with pytest.raises(FormatError, match="larger than 8 MB"):
        read_results(large)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Value("loss", math.nan), "loss must be a finite number"),
        (lambda: Value("", 1.0), "needs a name"),
        (lambda: Interval(2, 1, ""), "found 2 to 1"),
        (lambda: Interval(0, math.inf, ""), "found 0 to inf"),
        (lambda: result_of(Value("a", 1, row="r"), Value("a", 2, row="r")), "row 'r'.*more than"),
    ],
)
def test_values_that_make_no_sense(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_result_says_where_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["relmo", "probe pos", "\udcff"])
    result = build_result("probe", [accuracy(9, 10)], seconds=1.23456, seeds=[1, 2])
    assert result.command.startswith("relmo 'probe pos' ")
    assert (result.relmo, result.seeds, result.seconds) == (__version__, (1, 2), 1.235)
    assert result.machine.n_cores >= 1
    assert result.started.endswith("+00:00")
    path = tmp_path / "results.json"
    write_results(result, path)  # although the command is not UTF-8
    assert replace(read_results(path), command=result.command) == result


def test_files_are_known_by_their_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(bytes(3 << 20))
    a, b = data_identity([tmp_path / "a", tmp_path / "b"])
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert a == DataFile("a", abc, 3)
    assert (b.name, b.n_bytes) == ("b", 3 << 20)
    with pytest.raises(DataError, match="Cannot read"):
        data_identity([tmp_path / "c"])


# ---- intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(  # Newcombe 1998, table I, method 3
    ("n_right", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_the_published_one(n_right, n, low, high):
    interval = binomial_interval(n_right, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    assert interval.kind == "95 % Wilson"


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.floats(0.5, 0.999))
def test_the_share_lies_in_its_interval(n_right, n, level):
    n_right = min(n_right, n)
    interval = binomial_interval(n_right, n, level=level)
    assert 0 <= interval.low <= n_right / n <= interval.high <= 1
    mirrored = binomial_interval(n - n_right, n, level=level)
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_a_bootstrap_is_as_wide_as_theory_says():
    sample = np.random.default_rng(3).normal(size=400)
    interval = bootstrap_interval(sample, seed=1)
    half = 1.96 * sample.std() / 20
    assert interval.low == pytest.approx(sample.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(sample.mean() + half, abs=0.1 * half)
    assert bootstrap_interval(sample, seed=1) == interval
    assert bootstrap_interval(sample, seed=2) != interval
    wider = bootstrap_interval(sample, seed=1, level=0.99)
    assert wider.low < interval.low < interval.high < wider.high
    assert wider.kind == "99 % bootstrap"


def test_a_bootstrap_of_much_comes_in_parts():
    sample = np.zeros(3_000_000)
    sample[::2] = 1
    interval = bootstrap_interval(sample, n_resamples=3)
    assert 0.499 < interval.low <= interval.high < 0.501
    assert bootstrap_interval([7.0]) == Interval(7.0, 7.0, "95 % bootstrap")


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap_interval([]),
        lambda: bootstrap_interval([1.0, math.nan]),
        lambda: bootstrap_interval([[1.0]]),
        lambda: bootstrap_interval([1.0], level=1.0),
        lambda: bootstrap_interval([1.0], n_resamples=0),
        lambda: binomial_interval(3, 2),
        lambda: binomial_interval(0, 0),
        lambda: binomial_interval(1, 2, level=0.0),
    ],
)
def test_intervals_of_nothing(call):
    with pytest.raises(ConfigError):
        call()


# ---- tables -------------------------------------------------------------------------------------


def test_a_table_of_one_result():
    result = result_of(
        Value("accuracy", 94.23, "%", "layer 0", "dev", Interval(93.96, 94.5, "95 % Wilson")),
        Value("accuracy", 95, "%", "layer 0", "test"),
        Value("accuracy", 9.999, "%", "a|b\n", "dev"),
        Value("words", 25_148, row="a|b\n"),
    )
    assert render_table(result) == (
        "|  | accuracy, dev (%) | accuracy, test (%) | words |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| layer 0 | 94.2 (94.0 to 94.5) | 95 |  |\n"
        "| a\\|b | 10.0 |  | 25,148 |\n"
    )
    assert "94.2 |" in render_table(result, intervals=False)


def test_a_table_of_several_results():
    one = result_of(Value("loss", 0.12345), Value("share", 0.0), what="one")
    two = result_of(Value("loss", 0.9), Value("share", 1e-9), what="two")
    assert render_table([one, two]) == (
        "| what | loss | share |\n| --- | ---: | ---: |\n"
        "| one | 0.123 | 0 |\n| two | 0.900 | 1e-09 |\n"
    )
    three = result_of(Value("loss", 0.5, row="layer 1"), what="three")
    assert "| three | layer 1 | 0.500 |" in render_table([one, three]).replace(" |  |", " |")
    assert render_table(one).splitlines()[2] == "| one | 0.123 | 0 |"
