"""What earlier versions wrote is read, by its public names only (scripts/make_artefacts.py)."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tolerance import rounding

import relmo

VERSIONS = sorted(path for path in (Path(__file__).parent / "data").iterdir() if path.is_dir())
LAYOUTS = ("segments", "stream")
READ_FROM_FILES = (".hdf5", ".safetensors", ".parquet", ".jsonl")
# The longest way of a number through these models: 8 character numbers, 8 filters into a highway
# and a projection, then per word and layer 4 + 4 into a cell and 6 out of it, for 10 words and 2
# layers. Values are below 3, where they are clipped, and sums of them below 10.
EMBEDDING = rounding(8 + 8 + 8 + 10 * 2 * (4 + 4 + 6), scale=10)


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda path: path.name)
def old(request):
    return request.param


@pytest.fixture(scope="module")
def expected(old):
    return json.loads((old / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(old):
    return relmo.load(old / "model")


@pytest.fixture
def relmo_command(run):
    """Run relmo: what it prints."""

    def relmo_command(*arguments):
        code, shown, said = run(*arguments)
        assert code == 0, said
        return shown

    return relmo_command


def all_hits(model, expected, directory):
    """Every occurrence of an index with its score, by sentence and place."""
    index = relmo.VectorIndex(directory)
    query = model.embed(expected["query"])[expected["place"]]
    (hits,) = index.search(query[None], k=len(index))
    found = {(tuple(hit.tokens), hit.place): hit.score for hit in hits}
    assert len(found) == len(index)
    return found


def hits_then(expected):
    return {(tuple(tokens), place): score for tokens, place, score in expected["hits"]}


def test_there_are_artefacts():
    assert [path.name for path in VERSIONS][:1] == ["0.1"]


def test_they_are_small():
    for version in VERSIONS:
        size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
        assert size < 300_000, version.name


def test_the_model_gives_the_same_vectors(model, expected):
    found = model.embed(expected["sentences"], layers="all")
    assert len(found) == len(expected["layers"]) == 2
    for vectors, layers in zip(found, expected["layers"], strict=True):
        assert np.abs(layers).max() > 0.5
        np.testing.assert_allclose(vectors, np.float32(layers), rtol=0, atol=EMBEDDING)


def test_the_model_predicts_the_same(relmo_command, old, expected):
    found = json.loads(
        relmo_command("perplexity", old / "sentences.txt", "-m", old / "model", "--json")
    )
    then = expected["perplexity"]
    assert found["tokens"] == then["tokens"]
    for direction in ("forward", "backward", "average"):  # exp of a mean of logits below 30
        assert found[direction] == pytest.approx(then[direction], rel=30 * EMBEDDING)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_that_was_killed_comes_to_the_same_end(
    relmo_command, old, expected, tmp_path, layout
):
    then = expected[f"run-{layout}"]
    copy = tmp_path / "run"
    shutil.copytree(old / f"run-{layout}", copy)
    rows_before = (copy / "metrics.jsonl").read_text().splitlines()
    assert len(rows_before) == then["rows_before"] < len(then["losses"])
    relmo_command(
        *("pretrain", old / "text.txt", "-o", copy, "--resume"),
        *("--max-tokens", expected["max_tokens"], "--cache", tmp_path / "cache"),
    )
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    assert lines[: len(rows_before) - 1] == rows_before[:-1]  # killed between a row and its step
    rows = [json.loads(line) for line in lines]
    assert rows[-1]["step"] == then["step"]
    assert rows[-1]["tokens"] == then["tokens"]
    # Each step adds what rounding did to the gradients of up to 64 predictions to the weights, at
    # a learning rate of 0.01; losses are of size 2.
    tolerance = rounding(64 * then["step"], scale=0.01 * 2)
    assert {str(row["step"]): row["loss"] for row in rows} == pytest.approx(
        then["losses"], rel=tolerance
    )
    perplexity = json.loads(
        relmo_command("perplexity", old / "text.txt", "-m", copy / "model", "--json")
    )
    assert perplexity["average"] == pytest.approx(
        then["perplexity"]["average"], rel=30 * EMBEDDING + tolerance
    )
    assert relmo.load(copy / "model").embed("a red dog").shape == (3, 8)


def test_the_index_is_searched_with_its_model(relmo_command, old, model, expected):
    found = all_hits(model, expected, old / "index")
    assert found == pytest.approx(hits_then(expected), abs=EMBEDDING)
    query = expected["query"].split()
    query[expected["place"]] = f"[{query[expected['place']]}]"
    shown = relmo_command(
        "index", "search", " ".join(query), "-i", old / "index", "-m", old / "model"
    )
    best = max(expected["hits"], key=lambda hit: hit[2])
    assert " ".join(best[0][:2]) in shown  # it would be refused if the fingerprint were another


@pytest.mark.parametrize("ending", READ_FROM_FILES)
def test_an_index_is_built_from_the_files_of_vectors(
    relmo_command, old, model, expected, tmp_path, ending
):
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="needs relmo[parquet]")
    relmo_command(
        *("index", "build", old / f"vectors{ending}"),
        *("-o", tmp_path / "index", "-m", old / "model"),
    )
    found = all_hits(model, expected, tmp_path / "index")
    assert found == pytest.approx(hits_then(expected), abs=EMBEDDING)


def test_the_arrays_of_vectors_are_those_of_the_model(old, model):
    lines = (old / "few.txt").read_text(encoding="utf-8").splitlines()
    with np.load(old / "vectors.npz") as arrays:
        assert len(arrays.files) == len(lines) == 6
        for number, vectors in enumerate(model.embed(lines, layers="all")):
            np.testing.assert_allclose(arrays[arrays.files[number]], vectors, atol=EMBEDDING)


def test_nothing_tells_of_the_machine_that_wrote_them(old):
    for path in old.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".toml", ".md"):
            text = path.read_text(encoding="utf-8")
            assert "/tmp/" not in text, path
            assert os.sep + "work" + os.sep not in text, path
