"""What a wheel installs: all that relmo needs, without the repository and without a network."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from relmo.formats.bundled import BUNDLED
from relmo.presets import list_presets

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")
# Imported by every Python that has its folder on the path: whoever opens a connection fails.
NO_NETWORK = """
import socket

def refuse(*arguments, **options):
    raise AssertionError("this needs a network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""

pytestmark = pytest.mark.slow


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run([*map(str, command)], check=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing built before comes in."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=built)
        else:
            shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", target, source)
    (found,) = target.glob("relmo-*.whl")
    return found


@pytest.fixture(scope="module")
def relmo(wheel, tmp_path_factory):
    """Runs the installed command; what relmo depends on is that of this environment."""
    folder, elsewhere = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("elsewhere")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    (folder / "sitecustomize.py").write_text(NO_NETWORK)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONUTF8": "1"},
        )

    where = run("-c", "import relmo; print(relmo.__file__)").stdout
    assert Path(where.strip()).is_relative_to(folder)
    return run


def test_everything_is_inside(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for preset in list_presets():
        assert f"relmo/presets/{preset}.toml" in names
    for model in BUNDLED.values():
        for file in model.directory.iterdir():
            assert f"relmo/bundled/{model.name}/{file.name}" in names
    assert [n for n in names if n.startswith("relmo/model/kernels/_cell.") and n.endswith(".so")]
    assert [n for n in names if n.endswith("licenses/LICENSE")]
    assert "relmo/py.typed" in names
    assert {f"relmo/analysis/templates/senses.{kind}" for kind in ("html", "css", "js")} <= {*names}
    assert not [n for n in names if n.startswith("tests")]


def test_bundled_models_work_offline(relmo):
    found = relmo("-m", "relmo", "models", "--json")
    names = [model["name"] for model in json.loads(found.stdout)["models"] if model["bundled"]]
    assert names == list(BUNDLED)
    for name in names:
        code = f"import relmo; print(relmo.load({name!r}).embed(['a b']).__len__())"
        assert relmo("-c", code).stdout == "1\n"
    told = relmo("-m", "relmo", "demo", "--seconds", "2")
    assert told.returncode == 0, told.stderr
    for number in range(1, 6):
        assert f"\n{number}. " in told.stdout
    assert "\nNext\n" in told.stdout
    assert relmo("-c", "import socket; socket.create_connection(('127.0.0.1', 9))").returncode
