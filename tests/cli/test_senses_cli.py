"""`relmo senses`, as it is typed."""

import json

import pytest

import relmo
from relmo.formats import native

TEXT = "".join(
    [f"just at present {who} is {what} .\n" for who in ("he", "she") for what in ("ill", "old")]
    + [f"a Present from {who} to {whom} .\n" for who in ("me", "him") for whom in ("you", "us")]
    + ["Presents are nice .\n", "nothing else here\n"]
)


@pytest.fixture
def senses(run, tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)

    def senses(*arguments):
        return run("senses", *arguments, "-m", "model", "--corpus", "text.txt", "--lines")

    return senses


def test_table(senses):
    code, out, err = senses("present", "-n", 2, "-k", 1)
    assert (code, err) == (0, "")
    assert "\x1b" not in out  # no terminal, no colours
    head, *rows = out.splitlines()
    assert head == "present: 8 occurrences in 2 groups"
    titles = [row for row in rows if "50%" in row]
    assert len(titles) == 2
    assert any("just" in row for row in titles)
    assert len([row for row in rows if "[present]" in row or "[Present]" in row]) == 2


def test_json_and_forms(senses):
    code, out, _ = senses("present", "presents", "-n", 2, "--json", "--layers", "top", "--seed", 3)
    found = json.loads(out)
    assert code == 0
    assert (found["words"], found["found"]) == (["present", "presents"], 9)
    assert sorted(n for sense in found["senses"] for n in sense["members"]) == list(range(9))
    for occurrence in found["occurrences"]:
        word = occurrence["sentence"][occurrence["start"] : occurrence["end"]]
        assert word.lower() in ("present", "presents")
        assert 0 <= occurrence["sense"] < 2


def test_one_picture(senses, tmp_path):
    found = relmo.find_senses(
        "present",
        tmp_path / "text.txt",
        tmp_path / "model",
        pictures="a.html",
        options=relmo.SenseOptions(n_senses=2),
    )
    assert len(found.senses) == 2
    assert (tmp_path / "a.html").stat().st_size


def test_pictures(senses, tmp_path):
    code, *_ = senses("present", "--max", 6, "-o", "a.svg", "-o", "b.html")
    assert code == 0
    assert "6 of 8 occurrences" in (tmp_path / "a.svg").read_text()
    assert "6 of 8 occurrences" in (tmp_path / "b.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "absent occurs no times in the text"),
        (["nothing"], "nothing occurs 1 time in the text"),
        (["at present"], "expected one token"),
        (["present", "-o", "a.gif"], "a.gif must end in one of .png, .svg, .html"),
        (["present", "-n", 20], "Cannot make 20 groups"),
        (["present", "--layers", "upper"], "layers is 'upper'; choose"),
    ],
)
def test_mistakes(senses, arguments, message):
    code, out, err = senses(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert message in err
