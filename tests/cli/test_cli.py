"""The command line, end to end: files in, files out, and what a user's mistakes look like."""

import json
import os
import re
import resource
import subprocess
import sys

import h5py
import numpy as np
import pytest
from conftest import close
from tolerance import network_rounding
from typer.main import get_command

import relmo
from relmo.cli import app
from relmo.formats import WRITERS
from relmo.formats.bundled import BUNDLED


@pytest.fixture
def model(tiny_contents, tmp_path):
    WRITERS["relmo"](tiny_contents, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        "The cat sat .\n\nna\u00efve caf\u00e9 \u2028 end\nThe cat sat .\n", encoding="utf-8"
    )
    return path


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


def test_the_old_layout_on_the_allennlp_fixture(run, elmo_fixtures, tmp_path):
    """The contract's own example."""
    sentences = json.loads((elmo_fixtures / "allennlp" / "sentences.json").read_text())[0]
    (tmp_path / "sentences.txt").write_text("\n".join(sentences) + "\n")
    fixture = elmo_fixtures / "allennlp"
    options = ("--layers", "all", "--tokenizer", "whitespace")
    code, out, err = run("embed", "sentences.txt", "-m", fixture, "-o", "out.hdf5", *options)
    assert (code, out) == (0, "")
    assert err.startswith("Wrote out.hdf5: 10 sentences, ")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {*map(str, range(10)), "sentence_to_index"}
        index = json.loads(file["sentence_to_index"][0])
        assert index == {sentence: str(i) for i, sentence in enumerate(sentences)}
        for i, sentence in enumerate(sentences):
            assert file[str(i)].shape == (3, len(sentence.split()), 32)
        model = relmo.load(fixture)
        expected = model.embed([sentences[0].split()], layers="all")[0]
        bound = network_rounding(model.config, len(expected[0]))
        assert close(file["0"][()], expected, atol=bound)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        pytest.param(("--workers", "2"), marks=pytest.mark.slow),
        ("--threads", "1"),
        ("--threads", "2"),
    ],
)
def test_embed_keeps_every_line_in_its_place(run, model, text, tmp_path, flags):
    assert run("embed", text, "-m", model, "-o", "out.npz", "--layers", "top", *flags)[0] == 0
    sentences = [line.split() for line in text.read_text(encoding="utf-8").split("\n")[:-1]]
    loaded = relmo.load(model)
    expected = loaded.embed(sentences, layers="top")
    with np.load(tmp_path / "out.npz") as found:
        assert set(found.files) == {"0", "1", "2", "3"}
        for i, vectors in enumerate(expected):
            assert close(found[str(i)], vectors, atol=network_rounding(loaded.config, 5))
    assert expected[1].shape == (0, 32)


@pytest.mark.slow
def test_stdin_to_stdout(model, text):
    found = subprocess.run(
        [sys.executable, "-m", "relmo", "embed", "-", "-m", model, "-o", "-", "--layers", "0,2"],
        input=text.read_bytes(),
        capture_output=True,
        check=True,
    )
    assert found.stderr == b""
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [row["sentence"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["tokens"] == ["The", "cat", "sat", "."]
    assert np.array(rows[0]["vectors"]).shape == (2, 4, 32)


def test_float16(run, model, text, tmp_path):
    assert run("embed", text, "-m", model, "-o", "o.h5", "--dtype", "float16")[0] == 0
    with h5py.File(tmp_path / "o.h5") as file:
        assert file["0"].dtype == np.float16


def test_convert_there_and_back(run, elmo_fixtures, tmp_path):
    fixture = elmo_fixtures / "allennlp"
    assert run("convert", fixture, "native", "--to", "relmo")[0] == 0
    assert run("convert", "native", "back", "--to", "bilm-tf")[0] == 0
    compared = []
    with h5py.File(fixture / "lm_weights.hdf5") as one, h5py.File("back/weights.hdf5") as two:
        one.visititems(
            lambda name, item: (
                compared.append(np.array_equal(item[()], two[name][()]))
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    assert len(compared) > 20
    assert all(compared)


def test_info(run, model):
    code, out, _ = run("info", model, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["layers"], facts["output_dim"], facts["n_characters"]) == (2, 32, 262)
    code, out, _ = run("info", model)
    assert code == 0
    assert "parameters" in out


def test_info_of_the_machine(run):
    code, out, _ = run("info", "--system", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["lstm_cell"].startswith(("C kernel", "PyTorch ("))
    assert facts["int8"].startswith(("oneDNN", "none"))
    assert {"processor", "instruction_sets", "torch_uses"} <= facts.keys()


def test_models(run):
    code, out, _ = run("models", "--json")
    assert code == 0
    facts = json.loads(out)["models"]
    published = ["small", "medium", "original", "original-5.5b"]
    assert [m["name"] for m in facts if not m["bundled"]] == published
    assert [m["name"] for m in facts if m["bundled"]] == list(BUNDLED)
    code, out, _ = run("models")
    assert "13,593,296" in out
    assert out.count(" bundled ") == len(BUNDLED)


def test_demo_is_plain_where_there_is_no_terminal(run, model):
    code, out, err = run("demo", "-m", "model", "--seconds", 0)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_demo_has_colours_unless_they_are_not_wanted(run, model, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = run("demo", "-m", "model", "--seconds", 0)[1]
    assert "\x1b[" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = run("demo", "-m", "model", "--seconds", 0)[1]
    assert plain == re.sub(r"\x1b\[[\d;]*m", "", coloured)


@pytest.mark.parametrize(
    "command",
    [
        ("embed", "text.txt", "-o", "vectors.jsonl"),
        pytest.param(("neighbours", "present"), marks=pytest.mark.slow),
        ("perplexity", "text.txt"),
        ("score", "text.txt", "--least", 1),
        ("substitutes", "The [cat] sat on the mat."),
    ],
)
def test_without_a_model_it_is_the_bundled_one(run, text, command):
    code, shown, said = run(*command)
    assert code == 0, said
    assert run(*command, "-m", "en") == (0, shown, said)


def test_every_verb_has_a_model():
    verbs = dict(get_command(app).commands)
    for group in ("index", "probe"):
        verbs |= verbs.pop(group).commands
    options = [p for verb in verbs.values() for p in verb.params if "--model" in p.opts]
    assert len(options) == 11
    for option in options:
        assert option.default == "en" or "Default: en" in option.help


@pytest.mark.parametrize(
    ("verb", "shown"),
    [
        (["neighbours"], ["[cat]", "[present]"]),
        (["substitutes"], ["[cat]", "[bank]"]),
        (["index"], ["[present]"]),
        (["index", "search"], ["[cat]"]),
    ],
)
def test_help_shows_how_a_word_is_marked(run, verb, shown):
    out = run(*verb, "--help")[1]
    assert [mark for mark in shown if mark in out] == shown


def test_version_and_module(run):
    assert run("--version")[1] == f"relmo {relmo.__version__}\n"


MISTAKES = {
    "no such text": (("embed", "none.txt", "-m", "model", "-o", "o.npz"), "none.txt"),
    "no such model": (("embed", "text.txt", "-m", "nowhere", "-o", "o.npz"), "'nowhere'"),
    "no such folder": (("embed", "text.txt", "-m", "model", "-o", "no/o.npz"), "no directory"),
    "unknown ending": (("embed", "text.txt", "-m", "model", "-o", "o.doc"), ".parquet"),
    "unknown layers": (
        ("embed", "text.txt", "-m", "model", "-o", "o.npz", "--layers", "best"),
        "all, average, lstm, top",
    ),
    "layer too high": (
        ("embed", "text.txt", "-m", "model", "-o", "o.npz", "--layers", "7"),
        "0 to 2",
    ),
    "unknown tokenizer": (
        ("embed", "text.txt", "-m", "model", "-o", "o.npz", "--tokenizer", "bpe"),
        "whitespace",
    ),
    "unknown dtype": (
        ("embed", "text.txt", "-m", "model", "-o", "o.npz", "--dtype", "int4"),
        "float16",
    ),
    "unknown encoding": (
        ("embed", "text.txt", "-m", "model", "-o", "o.npz", "--encoding", "klingon"),
        "klingon",
    ),
    "convert to what": (("convert", "model", "out", "--to", "onnx"), "relmo, bilm-tf"),
    "convert onto something": (("convert", "model", "model"), "not empty"),
    "info of what": (("info",), "--system"),
    "info of both": (("info", "model", "--system"), "--system"),
    "unknown precision": (
        ("embed", "text.txt", "-m", "model", "-o", "o.npz", "--precision", "int2"),
        "int8 on a CPU",
    ),
    "info of nothing": (("info", "nothing"), "'nothing'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_message_and_exit_code_2(run, model, text, tmp_path, mistake):
    arguments, said = MISTAKES[mistake]
    before = leftovers(tmp_path)
    code, out, err = run(*arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert out == ""
    assert leftovers(tmp_path) == before


def test_one_of_several_processes_leaves_at_once(run, monkeypatch):
    left = []
    monkeypatch.setattr("os._exit", left.append)
    assert (run("info", "nothing")[0], left) == (2, [])
    monkeypatch.setenv("RANK", "1")
    assert (run("info", "nothing")[0], left) == (2, [2])
    assert (run("models")[0], left) == (0, [2, 0])


def test_text_that_is_not_utf8_is_named_by_line_and_byte(run, model, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"fine\ncaf\xe9 .\n")
    code, _, err = run("embed", "latin.txt", "-m", model, "-o", "o.npz")
    assert code == 2
    assert "line 2" in err
    assert "0xe9" in err
    assert "--encoding" in err
    assert not (tmp_path / "o.npz").exists()
    assert run("embed", "latin.txt", "-m", model, "-o", "a.npz", "--encoding", "latin-1")[0] == 0
    assert run("embed", "latin.txt", "-m", model, "-o", "b.npz", "--errors", "replace")[0] == 0


def test_unknown_options_are_warned_of_once(run, elmo_fixtures, tmp_path):
    options = json.loads((elmo_fixtures / "allennlp" / "options.json").read_text())
    options["lstm"]["reverse"] = True
    (tmp_path / "options.json").write_text(json.dumps(options))
    weights = elmo_fixtures / "allennlp" / "lm_weights.hdf5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [])
        code, _, err = run("info", weights, "--options", "options.json")
    assert code == 0
    assert err.count("lstm.reverse") == 1
    assert err.startswith("Warning: ")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["hdf5", "jsonl"])
def test_a_full_disk_leaves_nothing(model, tmp_path, ending):
    (tmp_path / "long.txt").write_text("many words in a line\n" * 2000)
    before = leftovers(tmp_path)
    command = [sys.executable, "-m", "relmo", "embed", "long.txt", "-m", model, "-o", f"o.{ending}"]
    found = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert found.returncode == 2
    assert f"o.{ending}" in found.stderr
    assert "Traceback" not in found.stderr
    assert leftovers(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", {1, 130}), ("SIGTERM", {143})])
def test_an_interrupted_run_leaves_nothing(model, tmp_path, name, code):
    """Killed while it waits for more text: nothing under the final name, no temporary."""
    import signal
    import time

    command = [sys.executable, "-m", "relmo", "embed", "-", "-m", model, "-o", "out.hdf5"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write("some words\n" * 100)
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not any(".partial-" in n for n in leftovers(tmp_path)):
            assert time.monotonic() < deadline, "the run never began to write"
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(getattr(signal, name))
        assert process.wait(30) in code
        assert "Traceback" not in process.stderr.read()
    assert leftovers(tmp_path) == ["model"]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error_to_shout_about(model, tmp_path):
    (tmp_path / "long.txt").write_text("many words in a line\n" * 3000)
    command = (
        f"'{sys.executable}' -m relmo embed long.txt -m '{model}' -o - | head -c 10 >/dev/null"
    )
    found = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.stderr == ""


def test_errors_name_the_options_of_the_verb_that_ran(run, model, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 .\n")
    assert run("embed", "latin.txt", "-m", model, "-o", "a.npz")[2].endswith(
        " Options: --encoding, --errors.\n"
    )
    _, _, said = run("index", "build", "latin.txt", "-m", model, "-o", "i", "--lines")
    assert said.endswith(" Options: --encoding, --errors.\n")
    _, _, said = run("senses", "cat", "--corpus", "none.txt", "-m", model)
    assert "'none.txt' matches no file" in said
    assert "Options" not in said  # it has none for that
