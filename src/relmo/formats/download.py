"""Download one file of a model: resume if interrupted, verify, then move into place.

The download is written to FILE.partial, and the server's validator (ETag or date) to FILE.tag. It
resumes with If-Range, so that parts of two versions are never joined.
"""

import hashlib
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib import request
from urllib.error import HTTPError, URLError

from relmo.errors import DataError, FormatError
from relmo.progress import progress

TIMEOUT_SECONDS = 30.0  # to connect, and for each read
RETRY_PAUSES = (1.0, 3.0, 9.0)  # seconds
MAX_BYTES = {".json": 1_000_000, ".hdf5": 2 * 1024**3}
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_BLOCK_BYTES = 1 << 18


class _DroppedError(Exception):
    """A temporary failure: worth a retry."""


class _NoAddressError(_DroppedError):
    """The name of the host is not known: there is no network, most likely."""


def download(
    urls: Sequence[str], path: Path, *, n_bytes: int | None = None, sha256: str | None = None
) -> None:
    """Download ``path`` unless it exists, from the first of the URLs that serves it completely."""
    with _disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f"{path.name}.lock")):
        failures: list[str] = []
        while not path.is_file():  # another process may have downloaded it meanwhile
            if len(failures) == len(urls):
                raise FormatError("; ".join(failures))
            url = urls[len(failures)]
            try:
                _download_from(url, path, n_bytes, sha256)
            except FormatError as error:
                failures.append(f"{url}: {error}")


def _download_from(url: str, path: Path, n_bytes: int | None, sha256: str | None) -> None:
    partial = path.with_name(f"{path.name}.partial")
    for tries, pause in enumerate((*RETRY_PAUSES, None), start=1):
        try:
            _receive(url, partial, MAX_BYTES[path.suffix], n_bytes)
            break
        except _DroppedError as error:
            offline = isinstance(error, _NoAddressError) and not partial.exists()
            if pause is None or offline:
                times = "once" if tries == 1 else f"{tries} times"
                raise FormatError(f"{error} (tried {times})") from error
            time.sleep(pause)
    with _disk(path):
        if fault := _fault(partial, path.suffix, n_bytes, sha256):
            _discard(partial)
            raise FormatError(fault)
        partial.replace(path)
        _discard(partial)


def _receive(url: str, partial: Path, limit: int, n_bytes: int | None) -> None:
    """Download into ``partial``; resume if the server still has the same version of the file."""
    start, tag = _resume_point(partial)
    headers = {"User-Agent": "relmo", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    with _connection():
        try:
            answer = request.build_opener(_Redirects).open(
                request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
            )
        except HTTPError as error:
            if error.code != 416 or not start:
                raise
            if error.headers["Content-Range"] == f"bytes */{start}":
                return  # complete: the earlier try ended before the check
            _discard(partial)
            raise _DroppedError("the server refused to resume an earlier download") from error
    with answer:
        if answer.headers.get_content_type() == "text/html":
            raise FormatError("expected a file, found a web page (the network's log-in page?)")
        if answer.length is None:
            raise FormatError(
                "the server gave no length, so that a truncated file could not be detected"
            )
        new_tag = _validator(answer.headers)
        start = start if answer.status == 206 else 0
        total = start + answer.length
        if answer.status == 206 and (
            answer.headers["Content-Range"] != f"bytes {start}-{total - 1}/{total}"
            or new_tag not in ("", tag)
        ):
            _discard(partial)
            raise _DroppedError(
                "the server resumed at the wrong byte, or with another version of the file"
            )
        if total > limit or n_bytes not in (None, total):
            if start:
                _discard(partial)
            expected = f"at most {limit:,}" if n_bytes is None else f"{n_bytes:,}"
            raise FormatError(f"expected {expected} bytes, found {total:,}")
        _store(answer, partial, start, total, new_tag)


def _store(answer: Any, partial: Path, start: int, total: int, tag: str) -> None:
    name = f"{partial.parent.name}/{partial.stem}"
    mode = "ab" if start else "wb"
    with progress(name, total, "bytes") as advance, _disk(partial), partial.open(mode) as file:
        if not start:
            partial.with_suffix(".tag").write_text(tag, encoding="latin-1")
        advance(start)
        while start < total:
            with _connection():
                block = answer.read1(min(_BLOCK_BYTES, total - start))
            if not block:
                raise _DroppedError(f"the connection was lost after {start:,} of {total:,} bytes")
            file.write(block)
            start += len(block)
            advance(len(block))
        file.flush()
        os.fsync(file.fileno())


def _fault(path: Path, suffix: str, n_bytes: int | None, sha256: str | None) -> str | None:
    """Describe what is wrong with a finished download, if anything."""
    size, digest = path.stat().st_size, hashlib.sha256()
    if n_bytes not in (None, size):
        return f"expected {n_bytes:,} bytes, found {size:,}"
    with path.open("rb") as file:
        head = file.read(len(HDF5_SIGNATURE))
        digest.update(head)
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if suffix == ".hdf5" and head != HDF5_SIGNATURE:
        return f"expected an HDF5 file, found one that begins with {head!r}"
    if suffix == ".json" and not _is_json_object(path):
        return f"expected a JSON object, found a file that begins with {head!r}"
    if sha256 not in (None, digest.hexdigest()):
        return f"expected sha256 {sha256}, found {digest.hexdigest()}"
    return None


def _is_json_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (ValueError, RecursionError):
        return False


def _discard(partial: Path) -> None:
    with _disk(partial):
        partial.unlink(missing_ok=True)
        partial.with_suffix(".tag").unlink(missing_ok=True)


def _resume_point(partial: Path) -> tuple[int, str]:
    """Bytes to resume after, and the validator of that file; 0 if there is no validator."""
    with _disk(partial):
        try:
            tag = partial.with_suffix(".tag").read_text(encoding="latin-1")
            return (partial.stat().st_size if tag and tag.isprintable() else 0), tag
        except FileNotFoundError:
            return 0, ""


def _validator(headers: http.client.HTTPMessage) -> str:
    """The strong ETag, else the date: a weak ETag does not guarantee the same bytes."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified", "")


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects to http(s) only, and never from https to http."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> request.Request | None:
        scheme = newurl.partition(":")[0].lower()
        if scheme != "https" and (scheme, req.type) != ("http", "http"):
            raise HTTPError(req.full_url, code, f"unsafe redirect to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _connection() -> Iterator[None]:
    """Turn failures into `_DroppedError` (worth a retry) or `FormatError` (not)."""
    try:
        yield
    except HTTPError as error:
        what = f"HTTP {error.code} {error.reason}"
        if error.code >= 500 or error.code in (408, 429):
            raise _DroppedError(what) from error
        raise FormatError(what) from error
    except URLError as error:
        kind = _NoAddressError if isinstance(error.reason, socket.gaierror) else _DroppedError
        raise kind(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _DroppedError(str(error) or type(error).__name__) from error


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror or error}; free some space there, or set RELMO_CACHE to a "
            "directory that can be written"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the system releases it if the process dies."""
    with _disk(path):
        file = path.open("ab")
    with file:
        with _disk(path):
            while not _try_lock(file):
                time.sleep(0.2)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # what POSIX and Windows say when it is held
        return False
    return True
