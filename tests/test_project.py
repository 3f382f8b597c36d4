"""The files around the code: workflows, templates, metadata, which only a forge would run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import relmo

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


def read_yaml(*parts):
    return yaml.safe_load(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def check(schema, *paths):
    """Run check-jsonschema with a schema that comes with it: no network."""
    run = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    return subprocess.run(run, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schema(schema):
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema")
    assert SCHEMAS[schema]
    done = check(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_workflow_is_found(tmp_path):
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema")
    text = WORKFLOWS[0].read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(text.replace("runs-on:", "runs_on:"), encoding="utf-8")
    assert check("vendor.github-workflows", wrong).returncode == 1


def test_pythons_that_are_promised_are_those_that_are_tested():
    promised = re.findall(r":: (3\.\d+)$", "\n".join(SETTINGS["project"]["classifiers"]), re.M)
    matrix = read_yaml(".github", "workflows", "ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == promised == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert SETTINGS["project"]["requires-python"] == f">={promised[0]}"
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_workflows_install_extras_that_exist():
    extras = SETTINGS["project"]["optional-dependencies"]
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    named = re.findall(r'-e "\.\[(\w+)\]"', text)
    assert named
    assert set(named) <= set(extras)


def test_workflows_run_scripts_that_exist():
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    wheel = SETTINGS["tool"]["cibuildwheel"]["test-command"]
    named = re.findall(r"(?:python |\{project\}/)(scripts/\w+\.py)", text + wheel)
    assert len(named) >= 2
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_version_stands_in_one_place():
    assert "version" not in SETTINGS["project"]
    assert SETTINGS["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "relmo.__version__"}
    assert read_yaml("CITATION.cff")["version"] == relmo.__version__


def test_our_own_pins_are_versions_that_users_may_have():
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {r.name.lower().replace("_", "-"): r for r in map(Requirement, lines)}
    for needed in map(Requirement, SETTINGS["project"]["dependencies"]):
        assert not [s for s in needed.specifier if s.operator == "=="], f"{needed} is pinned"
        if needed.marker is None:
            (pin,) = pins[needed.name.lower()].specifier
            assert needed.specifier.contains(pin.version), needed


def test_hooks_are_the_tools_of_make_check():
    (repo,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"  # another repository would bring versions of its own
    entries = [hook["entry"].split() for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in repo["hooks"])
    assert all(entry[0].startswith(".venv/bin/") for entry in entries)
    checked = re.findall(r"^\t\$\(BIN\)/(ruff \w+|mypy|lint-imports)", MAKEFILE, re.MULTILINE)
    assert checked
    hooks = {" ".join(entry[:2]) if "ruff" in entry[0] else entry[0] for entry in entries}
    assert {f".venv/bin/{tool}" for tool in checked} <= hooks


def test_bug_reports_ask_for_the_system():
    (form,) = (read_yaml(path) for path in FORMS if path.stem == "bug")
    (field,) = (f for f in form["body"] if f["id"] == "system")
    assert "relmo info --system" in field["attributes"]["label"]
    assert field["validations"]["required"]


def test_readme_is_short_and_names_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 160
    assert re.search(r"^make demo\b", text, re.MULTILINE)
    assert re.search(r"^make test\b", text, re.MULTILINE)


def test_architecture_page_has_a_line_for_every_package():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^  (\w+)/ +\w", text[: text.index("\ntests/")], re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "src" / "relmo").glob("*/__init__.py")}
    assert packages <= listed
