"""`relmo index`: build, search, recall."""

import json
from dataclasses import replace

import pytest
from tolerance import rounding

from relmo.formats import native

TEXT = "the cat saw a bird\nthe cats ran\na bird ran\nthe bird saw cats\n"
QUERY = "a [cat] ran"


@pytest.fixture
def folder(tiny_contents, tmp_path):
    config = tiny_contents.config.model_copy(update={"tokenizer": "words"})
    native.write(replace(tiny_contents, config=config), tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def test_approximate_and_exact_search(run, folder):
    pytest.importorskip("faiss", reason="needs relmo[faiss]")
    build = ("index", "build", "text.txt", "-m", "model", "-o", "fast", "--lines", "--approximate")
    assert run(*build)[0] == 0
    search = ("index", "search", QUERY, "-m", "model", "-i", "fast", "-k", 5, "--json")
    _, found, _ = run(*search)
    _, exact, _ = run(*search, "--exact")
    hits, expected = json.loads(found)["hits"], json.loads(exact)["hits"]
    assert len(hits) == 5
    assert [h["tokens"] for h in hits] == [h["tokens"] for h in expected]
    assert [h["score"] for h in hits] == pytest.approx(
        [h["score"] for h in expected], abs=rounding(3 * 32)
    )
    _, told, _ = run("index", "recall", "-i", "fast", "-k", 3, "--queries", 7, "--json")
    assert json.loads(told) == {"recall": 1.0, "k": 3, "queries": 7}
    assert run("index", "recall", "-i", "fast")[1] == "recall@10 1.0000\n"


def test_an_index_of_stored_vectors(run, folder):
    """The tokenizer is named when it is built; searching finds it in the index."""
    (folder / "text.txt").write_text("don't stop\na can't-do cat\n")
    embed = ("embed", "text.txt", "-m", "model", "-o", "vectors.hdf5", "--layers", "all")
    assert run(*embed, "--tokenizer", "whitespace")[0] == 0
    build = ("index", "build", "vectors.hdf5", "-m", "model", "-o", "index", "--layers", "1")
    code, _, said = run(*build)
    assert code == 2
    assert "by the tokenizer 'words'" in said
    assert run(*build, "--tokenizer", "whitespace")[0] == 0
    _, shown, _ = run("index", "search", "I [can't] stop", "-m", "model", "-i", "index", "--json")
    assert {tuple(hit["tokens"]) for hit in json.loads(shown)["hits"]} == {
        ("don't", "stop"),
        ("a", "can't-do", "cat"),
    }


MISTAKES = {
    "build text.txt -m model -o new --layers all": "one vector per token",
    "build text.txt a.npz -m model -o new": "index one kind at a time",
    "build a.npz -m model -o new": "holds vectors without their sentences",
    "recall -i index": "has no approximate search",
    "search [cat] -m other -i index": "the weights of another model",
    "search [cat][ran] -m model -i index": "found 2",
    "search cat -m model -i index": "found none",
}


def test_mistakes(run, folder, tiny_contents):
    tensors = {name: 1.1 * tensor for name, tensor in tiny_contents.tensors.items()}
    native.write(replace(tiny_contents, tensors=tensors), folder / "other")
    (folder / "a.npz").touch()
    assert run("index", "build", "text.txt", "-m", "model", "-o", "index", "--lines")[0] == 0
    for arguments, said in MISTAKES.items():
        code, shown, found = run("index", *arguments.split())
        assert (code, shown) == (2, "")
        assert said in found
    assert not (folder / "new").exists()
