"""Budgets and invariants of the source (ARCHITECTURE.md), read from the source itself."""

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from relmo.cli import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "relmo"
TREES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}
VERBS = sorted(get_command(app).commands)

# Lines, docstrings and comments included.
CEILINGS = {"model/bilm.py": 320}
GENERAL_CEILING = 400
FUNCTION_CEILING = 50

TABLES = {
    "READERS": "relmo.formats",
    "WRITERS": "relmo.formats",
    "TOKENIZERS": "relmo.text.tokenize",
    "SINKS": "relmo.vectors.sinks",
}


def trees_of(*folders):
    """The files of some of the packages, at least one of each."""
    found = {n: t for n, t in TREES.items() if n.split("/")[0] in folders and "/" in n}
    assert {name.split("/")[0] for name in found} == set(folders)
    return found


def imported_modules(tree):
    """Every module that a file imports, wherever in the file, `from a import b` as a.b too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called_names(tree):
    """Names of what is called: `f` of f() and of x.f()."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr


def functions(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def code_words(tree):
    """Names, strings and numbers of the code; docstrings may speak of anything."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)
        for field in ("id", "attr", "arg", "name"):
            if isinstance(word := getattr(node, field, None), str):
                yield word


# ---- budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_files_keep_to_their_ceilings(name):
    ceiling = CEILINGS.get(name, GENERAL_CEILING)
    n_lines = len((SOURCE / name).read_text(encoding="utf-8").splitlines())
    assert n_lines <= ceiling, f"{name}: {n_lines} lines, {ceiling} allowed"


def test_ceilings_name_files_that_exist():
    assert set(CEILINGS) <= set(TREES)


def test_functions_fit_on_a_screen():
    long = {}
    for name, tree in TREES.items():
        for function in functions(tree):
            # A verb's signature is its table of options, and bounded by its file's ceiling.
            start = function.body[0] if name.startswith("cli/") else function
            n_lines = function.end_lineno - start.lineno + 1
            if n_lines > FUNCTION_CEILING:
                long[f"{name}:{function.name}"] = n_lines
    assert not long


def test_names_say_what_is_inside():
    vague = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [name for name in TREES if vague & set(Path(name).with_suffix("").parts)]


# ---- who may do what ----------------------------------------------------------------------------


def test_model_opens_no_file():
    modules = {"pathlib", "io", "shutil", "tempfile", "json", "pickle", "h5py", "safetensors"}
    calls = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "load_file", "save"}
    for name, tree in trees_of("model").items():
        assert not modules & {module.split(".")[0] for module in imported_modules(tree)}, name
        assert not calls & set(called_names(tree)), name


def test_formats_define_no_layer():
    for name, tree in trees_of("formats").items():
        bases = [
            ast.unparse(b) for n in ast.walk(tree) if isinstance(n, ast.ClassDef) for b in n.bases
        ]
        assert not [base for base in bases if "Module" in base or base.startswith("nn.")], name


def test_train_knows_neither_models_nor_tasks():
    below = ("arrays", "config", "errors", "files", "machine", "progress", "prefetch")
    allowed = tuple(f"relmo.{name}" for name in below)
    for name, tree in trees_of("train").items():
        own = [m for m in imported_modules(tree) if m and m.startswith("relmo.")]
        assert not [
            m for m in own if not m.startswith((*allowed, "relmo.train", "relmo.__version__"))
        ], name


def test_text_imports_no_torch():
    for name, tree in trees_of("text").items():
        modules = {module.split(".")[0] for module in imported_modules(tree)}
        assert "torch" not in modules, name


def test_text_works_where_there_is_no_torch():
    """Nor may anything that it imports."""
    modules = [f"relmo.{n[:-3].replace('/', '.')}" for n in TREES if n.startswith("text/")]
    code = f"import sys; sys.modules['torch'] = None; import {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_nothing_prints_outside_the_command_line():
    for name, tree in TREES.items():
        if not name.startswith("cli/"):
            assert "print" not in set(called_names(tree)), name


FLAG = re.compile(r"(?<![\w-])--[a-z]|(?<=\s)--$|(?<![\w-])-[a-z] [A-Z]{2,}")


@pytest.mark.parametrize("name", TREES)
def test_only_the_command_line_names_its_flags(name):
    """Errors name settings (`RelmoError.settings`), and the command line adds its options."""
    if not name.startswith(("cli/", "demo/")):
        words = [n.value for n in ast.walk(TREES[name]) if isinstance(n, ast.Constant)]
        assert not [w for w in words if isinstance(w, str) and FLAG.search(w)]


def test_flags_are_found_where_they_belong():
    words = {w for tree in trees_of("cli").values() for w in code_words(tree)}
    assert {"--lines/--prose", "--layer"} <= {w for w in words if FLAG.search(w)}
    assert FLAG.search("leave --")  # f"leave --{name} out"
    assert FLAG.search("give -m MODEL")
    assert not FLAG.search("a -- b, x--y, well-known, p - q")


LEGACY = re.compile(
    r"<bow>|<eow>|\b261\b|W_carry|b_carry|^carry$|forget|MultiRNNCell|LSTMCell|W_cnn|char_embed\b"
    r"|proj_clip|use_skip_connections|state_linearity|highways\._layers|weights_only"
)


@pytest.mark.parametrize("name", TREES)
def test_legacy_quirks_stay_in_formats(name):
    defines_marks = name in ("text/characters.py", "text/lexicon.py")
    allowed = name.startswith("formats/") or defines_marks
    found = {word for word in code_words(TREES[name]) if LEGACY.search(word)}
    assert allowed or not found


def test_the_legacy_words_are_found_where_they_belong():
    words = {w for tree in trees_of("formats").values() for w in code_words(tree)}
    for word in ("<bow>", "261", "W_cnn", "forget", "carry", "LSTMCell"):
        assert any(word in w and LEGACY.search(w) for w in words), word


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_names_are_plain(table):
    module = import_module(TABLES[table])
    value = getattr(module, table)
    assert isinstance(value, Mapping)
    assert all(isinstance(key, str) for key in value)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    written = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and table in ast.unparse(getattr(node, "target", None) or node.targets[0])
    ]
    assert [type(node) for node in written] == [ast.Dict], "a literal, and nothing registers later"


OLD_NAMES = re.compile(
    r"\b(read_ahead|both_ways|strongest|run_both|read_layer|Course|near_by_kind|Scorer|Concatenated"
    r"|Embedder|choose_config|score_lines|index_files|relmo\.(ahead|score|pretrain\.\w+|vectors\.(embedder|choice|static)))\b"
)


def test_old_identifiers_are_gone():
    allowed = {"__init__.py"}  # the deprecated alias
    found = {n for n, t in TREES.items() if any(OLD_NAMES.search(w) for w in code_words(t))}
    assert found <= allowed
    others = [*(SOURCE / "model" / "kernels").glob("*.[ch]")]
    for folder in ("benchmarks", "examples", "scripts"):
        others += (ROOT / folder).glob("*.*")
    assert {"cell.c", "make_artefacts.py", "embed.py"} <= {path.name for path in others}
    assert not [p.name for p in others if OLD_NAMES.search(p.read_text(encoding="utf-8"))]


# ---- imports ------------------------------------------------------------------------------------


def test_every_package_has_its_place_in_the_import_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (contract,) = settings["importlinter"]["contracts"]
    layers = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    packages = {name.split("/")[0].removesuffix(".py") for name in TREES}
    assert contract["type"] == "layers"
    assert set(layers) == packages - {"__init__", "__main__"}
    order = ("cli", "pretraining", "train", "formats", "model", "text", "config", "errors")
    assert [name for name in layers if name in order] == list(order)


NO_TORCH = """
import contextlib, io, sys
import relmo
assert "torch" not in sys.modules, "import relmo"
from relmo.cli import app
for verb in [[], *([v] for v in sys.argv[1:])]:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        app([*verb, "--help"], standalone_mode=False)
    assert "--help" in shown.getvalue(), verb
    heavy = {"torch", "h5py", "safetensors"} & set(sys.modules)
    assert not heavy, (verb, heavy)
"""


def test_help_needs_no_torch():
    run = [sys.executable, "-c", NO_TORCH, *VERBS]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- what belongs to a change -------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example(verb):
    text = get_command(app).commands[verb].help
    _, _, examples = text.partition("[bold]Examples[/bold]")
    assert f"relmo {verb}" in examples


def test_every_command_of_a_group_shows_an_example():
    groups = {v: c.commands for v, c in get_command(app).commands.items() if hasattr(c, "commands")}
    assert {"index", "cache", "probe"} <= groups.keys()
    for verb, commands in groups.items():
        for name, command in commands.items():
            _, _, examples = command.help.partition("[bold]Examples[/bold]")
            assert f"relmo {verb} {name}" in examples


def test_every_verb_has_its_own_file():
    assert {f"cli/{verb}.py" for verb in VERBS} <= set(TREES)


def test_changelog_has_an_unreleased_section():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = re.search(r"^## \[Unreleased\]\n(.+?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert unreleased
    assert re.search(r"^### (Added|Changed|Fixed|Removed)\n+- ", unreleased[1], re.MULTILINE)


def test_decisions_are_short():
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert records
    for record in records:
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+", record.stem)
        assert len(record.read_text(encoding="utf-8").splitlines()) <= 40, record.name


def test_architecture_page_is_short_and_names_tests_that_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 260
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert named
    for path, test in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {test}" in source, f"{path} has no {test}"
