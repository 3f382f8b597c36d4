import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import platformdirs.windows
import pytest

from relmo.errors import ConfigError, DataError
from relmo.files import (
    cache_directory,
    check_writable,
    directory_written_atomically,
    written_atomically,
)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_file_appears_only_at_the_end(tmp_path):
    path = tmp_path / "out.hdf5"
    with written_atomically(path) as partial:
        assert partial.parent == tmp_path
        assert partial.name.startswith(f".out.hdf5.partial-{os.getpid()}-")
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert names(tmp_path) == ["out.hdf5"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_keeps_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "out"
    path.write_text("old")

    def write():
        with written_atomically(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_directory_appears_only_at_the_end(tmp_path):
    path = tmp_path / "model"
    path.mkdir()  # an empty one may be there
    with directory_written_atomically(path) as partial:
        (partial / "deep").mkdir()
        (partial / "deep" / "file").write_text("x")
        assert names(path) == []
    assert (path / "deep" / "file").read_text() == "x"
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_no_directory(tmp_path, error):
    def write():
        with directory_written_atomically(tmp_path / "model") as partial:
            (partial / "file").write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == []


def test_a_full_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(DataError, match="not empty"),
        directory_written_atomically(tmp_path),
    ):
        pytest.fail("the block must not run")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_filled_meanwhile_is_kept(tmp_path):
    path = tmp_path / "model"

    def write():
        with directory_written_atomically(path):
            path.mkdir()
            (path / "file").write_text("mine")

    with pytest.raises(DataError, match="model"):
        write()
    assert names(tmp_path) == ["model"]
    assert (path / "file").read_text() == "mine"


@pytest.mark.parametrize("write", [written_atomically, directory_written_atomically])
def test_a_missing_directory_is_named(tmp_path, write):
    with (
        pytest.raises(DataError, match=r"there is no directory .*missing.* Create it"),
        write(tmp_path / "missing" / "out"),
    ):
        pytest.fail("the block must not run")


def test_the_wrong_kind_of_target_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="not a file"):
        check_writable(tmp_path)
    with pytest.raises(DataError, match="not a directory"):
        check_writable(tmp_path / "file", directory=True)
    check_writable(tmp_path / "file")


def test_no_permission_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(DataError, match="permission denied"):
        check_writable(tmp_path / "out")


def test_a_full_disk_names_the_file_and_an_error_elsewhere_stays_itself(tmp_path):
    path = tmp_path / "out"
    full = pytest.raises(DataError, match=r"out: No space left on device\. Free")
    with full, written_atomically(path):
        raise OSError(28, "No space left on device")
    with pytest.raises(FileNotFoundError), written_atomically(path):
        (tmp_path / "another").read_text()
    with pytest.raises(BrokenPipeError), written_atomically(path):
        raise BrokenPipeError
    assert names(tmp_path) == []


def test_a_symbolic_link_stays(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    with written_atomically(tmp_path / "link") as partial:
        assert partial.parent == tmp_path / "disk"
        partial.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "real").read_text() == "new"


def test_a_long_name_still_has_a_neighbour(tmp_path):
    path = tmp_path / ("é" * 120)
    with written_atomically(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new"


def test_sigterm_leaves_nothing_behind(tmp_path):
    program = """
        import time
        from pathlib import Path
        from relmo.files import directory_written_atomically as directory, written_atomically
        with written_atomically(Path("out")) as partial, directory(Path("model")):
            partial.write_text("half")
            print("ready", flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"ready\n"
        assert len(names(tmp_path)) == 2
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert names(tmp_path) == []


def test_sigterm_is_as_before_afterwards(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with written_atomically(tmp_path / "out"):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_where_python_drops_what_is_raised(tmp_path):
    program = """
        import signal, sys, time, weakref
        from pathlib import Path
        from relmo.files import written_atomically

        class Thing:
            pass

        def signal_inside(frame, event, _argument):
            if event == "call" and frame.f_code.co_filename == weakref.__file__:
                sys.setprofile(None)
                signal.getsignal(signal.SIGTERM)(signal.SIGTERM, frame)

        things = weakref.WeakValueDictionary()
        with written_atomically(Path("out")):
            things["b"] = thing = Thing()
            sys.setprofile(signal_inside)
            del thing
            time.sleep(60)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, timeout=30)
    assert run.returncode == 128 + signal.SIGTERM
    assert names(tmp_path) == []


def test_others_may_read_what_a_careful_writer_wrote(tmp_path):
    def write_privately(path):
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)

    (tmp_path / "usual").touch()
    with written_atomically(tmp_path / "file") as partial:
        write_privately(partial)
    with directory_written_atomically(tmp_path / "folder") as partial:
        write_privately(partial / "file")
    for path in (tmp_path / "file", tmp_path / "folder" / "file"):
        assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


# ---- the cache directory ------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch):
    for name in ("RELMO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    return monkeypatch


@pytest.mark.skipif(sys.platform != "linux", reason="these are the paths of Linux")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/home/me/.cache/relmo"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/relmo"),
        ({"RELMO_CACHE": "", "XDG_CACHE_HOME": "/xdg"}, "/xdg/relmo"),
        ({"RELMO_CACHE": "/mine", "XDG_CACHE_HOME": "/xdg"}, "/mine"),
        ({"RELMO_CACHE": "~/mine"}, "/home/me/mine"),
    ],
)
def test_cache_directory(environment, variables, expected):
    for name, value in variables.items():
        environment.setenv(name, value)
    assert cache_directory() == Path(expected)


def test_cache_directory_of_windows(environment):
    environment.setattr(platformdirs.windows, "get_win_folder", lambda name: "/local")
    environment.setattr(platformdirs, "PlatformDirs", platformdirs.windows.Windows)
    assert cache_directory() == Path("/local/relmo")


def test_no_home_directory(environment):
    environment.setenv("RELMO_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(ConfigError, match="RELMO_CACHE"):
        cache_directory()
    environment.delenv("RELMO_CACHE")
    environment.setattr(platformdirs, "user_cache_dir", lambda *a, **k: "~no-such-user/.cache")
    with pytest.raises(ConfigError, match="RELMO_CACHE"):
        cache_directory()
