"""The user's cache directory, and atomic writing.

A file is written in full or not at all: an error, Ctrl-C or SIGTERM leaves nothing behind.
"""

import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from relmo.errors import ConfigError, DataError


def cache_directory() -> Path:
    """Where downloads, prepared corpora and features are kept.

    The environment variable RELMO_CACHE, or "relmo" in the system's cache directory of the user.
    """
    own = os.environ.get("RELMO_CACHE")
    try:
        # Without appauthor and opinion, Windows' path is LOCALAPPDATA/relmo, as it has always been.
        path = own or platformdirs.user_cache_dir("relmo", appauthor=False, opinion=False)
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"There is no home directory to keep the cache in ({error}). Set the environment "
            "variable RELMO_CACHE to a directory."
        ) from error


@contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Give an empty temporary file that becomes `path` when the block ends well."""
    check_writable(path)
    with _partial(path) as partial:
        partial.touch(exist_ok=False)
        mode = partial.stat().st_mode
        yield partial
        partial.chmod(mode)  # some writers put a file of their own there, for nobody else to read


@contextmanager
def directory_written_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary directory that becomes `path`, which must be new or empty."""
    check_writable(path, directory=True)
    if path.exists() and any(path.iterdir()):
        raise DataError(f"{path} exists and is not empty. Choose a new name, or remove it first.")
    with _partial(path) as partial:
        partial.mkdir()
        mode = partial.stat().st_mode & 0o666
        yield partial
        for written in filter(Path.is_file, partial.rglob("*")):
            written.chmod(mode)


def check_writable(path: Path, *, directory: bool = False) -> None:
    """Raise `DataError` if no file (or directory) can be written at `path`."""
    parent = path.resolve().parent
    if path.exists() and not (path.is_dir() if directory else path.is_file()):
        kind = "directory" if directory else "file"
        raise DataError(f"{path} exists and is not a {kind}. Choose another name.")
    if not parent.is_dir():
        raise DataError(f"Cannot write {path}: there is no directory {parent}. Create it first.")
    if not all(os.access(place, os.W_OK) for place in (parent, path) if place.exists()):
        raise DataError(f"Cannot write {path}: permission denied. Write where you are allowed to.")


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Name a neighbour of `path` that takes its place in the end, or is removed."""
    final = path.resolve()  # a symbolic link stays, as after an ordinary write
    partial = final.with_name(f".{final.name[:40]}.partial-{os.getpid()}-{secrets.token_hex(4)}")
    # By default SIGTERM skips every `finally`; where nobody has chosen otherwise, it shall not.
    in_main_thread = threading.current_thread() is threading.main_thread()
    catch_sigterm = in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if catch_sigterm:
        signal.signal(signal.SIGTERM, _exit)
    try:
        yield partial
        for written in filter(Path.is_file, (partial, *partial.rglob("*"))):
            with written.open("rb+") as file:
                os.fsync(file.fileno())
        partial.replace(final)
    except OSError as error:
        elsewhere = error.filename and not str(error.filename).startswith(str(partial))
        if elsewhere or isinstance(error, ConnectionError):  # not about our file
            raise
        advice = "Free some space, raise the limit, or write somewhere else."
        raise DataError(f"Cannot write {path}: {error.strerror or error}. {advice}") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
        if catch_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: object) -> None:
    if "weakref.py" not in repr(frame):  # where h5py often is, and Python drops what is raised
        raise SystemExit(128 + number)
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
