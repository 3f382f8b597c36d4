"""Documentation that cannot go stale: code runs, commands parse, links lead somewhere."""

import doctest
import inspect
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from legacy import write_many_langs
from typer.main import get_command

import relmo
from relmo.cli import app
from relmo.config import TrainConfig
from relmo.features import __all__ as relmo_features
from relmo.formats import WRITERS
from relmo.train import __all__ as relmo_train

ROOT = Path(__file__).parents[1]
GENERATOR = ROOT / "scripts" / "cli_reference.py"
PYTHON_PAGE = "docs/reference/python.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
TEXTS = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in sorted(PAGES)}
SHELL_WORDS = {"|", "<", ">", "&&", ";"}  # where one command ends


def blocks(text, language):
    """The code blocks of a page, each with the number of lines before it."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, match.start(1)), match[1]


WITH_PYTHON = [name for name, text in TEXTS.items() if any(blocks(text, "python"))]
WITH_LINKS = [name for name, text in TEXTS.items() if "](" in text]


@pytest.fixture
def examples(tmp_path, monkeypatch, tiny_contents):
    """A folder in which everything that the pages load is there, and nothing can be downloaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELMO_OFFLINE", "1")
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    config = tiny_contents.config.model_copy(update={"tokenizer": "words"})
    contents = replace(tiny_contents, config=config)
    WRITERS["relmo"](contents, tmp_path / "my-model")
    WRITERS["bilm-tf"](contents, tmp_path / "pair")
    shutil.make_archive("norwegian", "zip", tmp_path / "pair")
    Path("pair", "options.json").rename("elmo_options.json")
    Path("pair", "weights.hdf5").rename("elmo_weights.hdf5")
    write_many_langs(tmp_path / "many-langs", np.random.default_rng(1))
    Path("sentences.txt").write_text("The cat sat.\n\nIt sleeps.\n", encoding="utf-8")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_examples_run(page):
    names = {"__name__": "__main__"}
    for n_lines_before, code in blocks(TEXTS[page], "python"):
        # Blank lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * n_lines_before + code, ROOT / page, "exec"), names)
    assert "relmo" in names  # every page with Python imports it


def test_the_first_example_prints_what_the_readme_shows(capsys):
    (_, code), *_ = blocks(TEXTS["README.md"], "python")
    (_, shown), *_ = blocks(TEXTS["README.md"], "text")
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 10
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == shown


def test_the_pages_with_examples_are_found():
    assert {"README.md", "docs/how-to/embed.md", "docs/how-to/train-on-top.md"} <= set(WITH_PYTHON)
    assert len(list(blocks(TEXTS["docs/how-to/embed.md"], "python"))) >= 5


def relmo_commands(text):
    """The arguments of every `relmo ...` in a page's shell blocks; synopses are left out."""
    for _, code in blocks(text, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = [*shlex.split(line, comments=True), "|"]
            while words:
                end = next(i for i, word in enumerate(words) if word in SHELL_WORDS)
                if words[:1] == ["relmo"] and "[OPTIONS]" not in words:
                    yield words[1:end]
                words = words[end + 1 :]


@pytest.mark.parametrize("page", [n for n, t in TEXTS.items() if any(relmo_commands(t))])
def test_commands_are_ones_that_relmo_takes(page):
    verbs = get_command(app).commands
    for verb, *arguments in relmo_commands(TEXTS[page]):
        if verb != "--version":
            command = verbs[verb]
            alone = getattr(command, "invoke_without_command", False) and (
                not arguments or arguments[0].startswith("-")
            )
            if hasattr(command, "commands") and not alone:  # a group: relmo index build
                command = command.commands[arguments.pop(0)]
            with command.make_context(verb, arguments) as context:  # raises where it does not
                assert not context.args


def test_make_targets_in_the_pages_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        t for text in TEXTS.values() for t in re.findall(r"^make (\w+)|`make (\w+)", text, re.M)
    }
    assert {"demo", "test"} <= {a or b for a, b in named} <= targets


def slug(heading):
    """The anchor that mkdocs and GitHub give a heading."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@pytest.mark.parametrize("page", WITH_LINKS)
def test_internal_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page} links to {target}"


def test_command_line_page_is_what_the_commands_say():
    assert TEXTS["docs/reference/cli.md"] == runpy.run_path(str(GENERATOR))["render"](), (
        "the commands have changed: run `make docs`"
    )


def test_command_line_page_does_not_depend_on_the_terminal():
    script = f"import runpy; print(runpy.run_path({str(GENERATOR)!r})['render'](), end='')"
    environment = os.environ | {"COLUMNS": "30", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment |= {"PYTHONIOENCODING": "utf-8", "SHELL": "/nowhere", "LC_ALL": "C"}
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, env=environment, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().replace("\r\n", "\n") == TEXTS["docs/reference/cli.md"]


def test_python_page_is_what_the_docstrings_say():
    generator = ROOT / "scripts" / "python_reference.py"
    assert TEXTS[PYTHON_PAGE] == runpy.run_path(str(generator))["render"](), (
        "signatures or docstrings have changed: run `make docs`"
    )


@pytest.mark.parametrize("name", relmo.__all__)
def test_python_page_has_every_public_name(name):
    headings = set(re.findall(r"^#+ (.+)$", TEXTS[PYTHON_PAGE], re.MULTILINE))
    value = getattr(relmo, name)
    expected = {f"relmo.{name}"}
    if inspect.isclass(value):
        methods = {n for n, m in vars(value).items() if inspect.isfunction(m) and n[0] != "_"}
        expected |= {f"{name}.{method}" for method in methods}
    if inspect.ismodule(value):
        classes = {
            n
            for n, c in vars(value).items()
            if inspect.isclass(c) and c.__module__ == value.__name__
        }
        expected = {f"relmo.{name}.{one}" for one in classes}
        assert len(expected) > 5
    assert expected <= headings


@pytest.mark.parametrize("package", ["features", "train"])
def test_python_page_has_what_a_task_needs(package):
    headings = set(re.findall(r"^### (.+)$", TEXTS[PYTHON_PAGE], re.MULTILINE))
    for name in import_module(f"relmo.{package}").__all__:
        assert {f"relmo.{name}", f"relmo.{package}.{name}"} & headings, name
    assert {"relmo.config.TrainConfig", "relmo.train.optim.Clipping"} <= headings
    fields = set(re.findall(r"^- `(\w+)`", entry("relmo.config.TrainConfig"), re.MULTILINE))
    assert fields == set(TrainConfig.model_fields)


def entry(name):
    """What the Python page says of a name."""
    return TEXTS[PYTHON_PAGE].split(f"### {name}\n")[1].split("\n### ")[0]


# Types of Python, NumPy and PyTorch, and a type variable, in the signatures of the Python page.
ELSEWHERE = {"AbstractContextManager", "Any", "Array", "ArrayLike", "Callable", "Collection"}
ELSEWHERE |= {"Example", "False", "Iterable", "Iterator", "Literal", "Mapping", "Module", "NDArray"}
ELSEWHERE |= {"None", "Optimizer", "Path", "Sequence", "Tensor", "True"}


def test_python_page_describes_every_type_of_its_signatures():
    text = TEXTS[PYTHON_PAGE]
    entries = {name.rpartition(".")[2] for name in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)  # types that are named in a table
    described = entries | {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    signatures = "\n".join(code for _, code in blocks(text, "py"))
    types = set(re.findall(r"\b[A-Z]\w+\b", signatures))
    assert {"Model", "Batch", "ModelLike"} <= types & described
    assert types - described <= ELSEWHERE


def doctests(name):
    """The examples in the docstring of a public name and of its methods."""
    home, _, attribute = f"relmo.{name}".rpartition(".")
    value = getattr(import_module(home), attribute, None)  # None: the page is stale
    found = doctest.DocTestFinder(exclude_empty=True).find(value, f"relmo.{name}")
    return [test for test in found if test.examples]


PUBLIC = [*relmo.__all__]
PUBLIC += [f"features.{name}" for name in relmo_features if name not in relmo.__all__]
PUBLIC += [f"train.{name}" for name in relmo_train if name != "train"]  # ModuleLearner's calls it
DOCUMENTED = [n.removeprefix("relmo.") for n in re.findall(r"^### (.+)$", TEXTS[PYTHON_PAGE], re.M)]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name):
    assert any(test.name == f"relmo.{name}" for test in doctests(name))


@pytest.mark.parametrize("name", sorted({"errors", *(n for n in DOCUMENTED if doctests(n))}))
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RELMO_OFFLINE", "1")
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    for number, test in enumerate(doctests(name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        test.globs = {"__name__": "__main__"}
        said = []
        failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        assert tried
        assert not failed, "".join(said)


@pytest.mark.slow
def test_site_builds_without_network(tmp_path):
    # A proxy that is not there: whatever asked the network for something would fail.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    run = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        run, cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for name, text in TEXTS.items():
        if name.startswith("docs/"):
            page = Path(name).relative_to("docs").with_suffix("")
            built = tmp_path / (page.parent if page.name == "index" else page) / "index.html"
            html = built.read_text(encoding="utf-8")
            loaded = re.findall(r"<(?:script|link)[^>]+(?:src|href)=\"?(https?://[^\" >]+)", html)
            assert not loaded, f"{name} loads {loaded}"
            assert len(html) > len(text)


def test_the_tables_of_results_are_those_of_their_files():
    filled = runpy.run_path(str(ROOT / "scripts" / "results_tables.py"))["filled"]
    pages = [
        p for p in (ROOT / "docs" / "results").glob("*.md") if "<!-- results:" in p.read_text()
    ]
    assert len(pages) >= 2
    for page in pages:
        assert page.read_text(encoding="utf-8") == filled(page), "run `make docs`"
