"""The stories of examples/ run from their first line to their last."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.slow


def tell(name, *arguments, cwd):
    """Run a script with this Python's relmo."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONUTF8": "1", "RELMO_CACHE": str(cwd / "cache")},
    )


@pytest.fixture
def novel(tmp_path):
    """Two chapters, in which everybody meets everybody everywhere."""
    people = ("宋江", "吴用", "林冲", "武松", "李逵")
    places = ("山上", "城里", "酒店里", "江边", "门前")
    said = ("大喜", "吃了一惊", "笑了", "不言语", "便走")
    meetings = [
        f"{one}在{place}见了{other}，{other}{way}。"
        for one, other, place, way in product(people, people, places, said)
        if one != other
    ]
    folder = tmp_path / "corpora" / "novel"
    folder.mkdir(parents=True)
    for chapter, some in enumerate((meetings[::2], meetings[1::2])):
        lines = "\n".join("".join(some[i : i + 5]) for i in range(0, len(some), 5))
        (folder / f"{chapter}.txt").write_text(lines, encoding="utf-8")
    return folder


def test_chinese_novel(tmp_path, novel):
    found = tell("chinese_novel.sh", novel, "林冲", 0.05, "run", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "run" / "model" / "lexicon.json").exists()
    near, occurrences = found.stdout.split("== Words near 林冲")[1].split("== Occurrences")
    assert "by the softmax vector" in near
    assert occurrences.count("[") == 6  # five, and the one that was asked for
    assert "[林冲]" in occurrences.splitlines()[0]


def test_a_name_that_is_not_there_is_said_before_training(tmp_path, novel):
    found = tell("chinese_novel.sh", novel, "宝玉", 0.05, "run", cwd=tmp_path)
    assert found.returncode != 0
    assert "宝玉 is no word of" in found.stderr
    assert not (tmp_path / "run").exists()
