import errno
import hashlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from relmo.errors import ConfigError, DataError, FormatError
from relmo.formats import download as module
from relmo.formats.download import HDF5_SIGNATURE, download
from relmo.formats.published import (
    BASE_URLS,
    PUBLISHED,
    PublishedModel,
    cache_directory,
    fetch,
    is_cached,
)

OPTIONS = json.dumps({"lstm": {"dim": 16}}).encode()
WEIGHTS = HDF5_SIGNATURE + bytes(range(256)) * 400
NEWER = HDF5_SIGNATURE + bytes(reversed(range(256))) * 400
CUT = 30_000
MODEL = PublishedModel(
    "mine",
    "2x1",
    n_parameters=25_602,
    trained_on="nothing",
    bytes=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
)


@dataclass
class Answer:
    """How the server answers one request."""

    body: bytes = WEIGHTS
    status: int = 200
    headers: dict[str, str | None] = field(default_factory=lambda: {"ETag": '"one"'})
    cut: int | None = None
    ignore_range: bool = False
    ignore_if_range: bool = False
    delay: float = 0.0
    then_wait: threading.Event | None = None


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers)))
        answer = self.server.answer(self.path)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        body, status = answer.body, answer.status
        first = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (headers.get("ETag"), headers.get("Last-Modified"))
        if status == 200 and first and not answer.ignore_range and (same or answer.ignore_if_range):
            start, n = int(first[1]), len(body)
            status = 206 if start < n else 416
            body = body[start:]
            span = f"{start}-{n - 1}" if start < n else "*"
            headers = {"Content-Range": f"bytes {span}/{n}", **headers}
            headers["Content-Length"] = str(len(body))
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if answer.delay:
            time.sleep(answer.delay)
        self.wfile.write(body[: answer.cut])
        if answer.then_wait:
            answer.then_wait.wait(30)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """Answers as planned, then with the right files; remembers what it was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.plan: deque[Answer] = deque()
        self.base_url = f"http://127.0.0.1:{self.server_address[1]}/"

    def answer(self, path):
        if self.plan:
            return self.plan.popleft()
        return Answer(OPTIONS) if path.endswith(".json") else Answer()

    def handle_error(self, request, client_address):
        pass  # the client hangs up early in some tests

    @property
    def ranges(self):
        return [headers.get("Range") for _, headers in self.requests]


@pytest.fixture
def new_server():
    servers = []

    def start():
        servers.append(Server())
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(new_server):
    return new_server()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("RELMO_OFFLINE", raising=False)
    monkeypatch.setattr(module, "RETRY_PAUSES", (0.01, 0.02, 0.03))


@pytest.fixture
def weights(tmp_path):
    return tmp_path / "model" / "weights.hdf5"


def leftovers(path: Path) -> set[str]:
    return {other.name for other in path.parent.iterdir()} - {f"{path.name}.lock"}


# The catalogue


def test_published_models():
    assert list(PUBLISHED) == ["small", "medium", "original", "original-5.5b"]
    assert all(url.startswith("https://") and url.endswith("/") for url in BASE_URLS)
    assert {model.licence for model in PUBLISHED.values()} == {"Apache-2.0"}
    small, big = PUBLISHED["small"], PUBLISHED["original-5.5b"]
    assert (small.bytes, small.approximate_bytes) == (54_402_456, 54_402_456)
    assert small.approximate_bytes == pytest.approx(4 * small.n_parameters, rel=0.001)
    assert re.fullmatch("[0-9a-f]{64}", small.sha256)
    assert big.bytes is None
    assert big.approximate_bytes == 4 * big.n_parameters


@pytest.mark.parametrize("model", PUBLISHED.values(), ids=PUBLISHED)
def test_parameters_follow_from_the_sizes_in_the_folder(model):
    sizes = re.match(r"2x(\d+)_(\d+)_2048cnn_(\d)xhighway", model.folder)
    hidden, projection, n_highways = (int(size) for size in sizes.groups())
    filters = {1: 32, 2: 32, 3: 64, 4: 128, 5: 256, 6: 512, 7: 1024}
    characters = 261 * 16 + sum(n * (16 * width + 1) for width, n in filters.items())
    dense = n_highways * 2 * (2048 * 2048 + 2048) + 2048 * projection + projection
    lstm = 2 * projection * 4 * hidden + 4 * hidden + hidden * projection
    assert model.n_parameters == characters + dense + 4 * lstm


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"'huge'.*small, medium, original, original-5\.5b"):
        fetch("huge")
    with pytest.raises(ConfigError, match="'huge'"):
        is_cached("huge")


# Fetching


def test_fetch_downloads_once(server):
    assert not is_cached(MODEL)
    options, weights = fetch(MODEL, base_urls=[server.base_url])
    assert options == cache_directory() / "mine" / "options.json"
    assert options.read_bytes() == OPTIONS
    assert weights.read_bytes() == WEIGHTS
    assert {path.name for path in options.parent.iterdir() if path.suffix != ".lock"} == {
        "options.json",
        "weights.hdf5",
    }
    asked = [path for path, _ in server.requests]
    assert asked == ["/2x1/elmo_2x1_options.json", "/2x1/elmo_2x1_weights.hdf5"]
    assert is_cached(MODEL)
    assert fetch(MODEL, base_urls=[server.base_url]) == (options, weights)
    assert len(server.requests) == 2


def test_fetch_gets_only_what_is_missing(server):
    _, weights = fetch(MODEL, base_urls=[server.base_url])
    weights.unlink()
    assert not is_cached(MODEL)
    fetch(MODEL, base_urls=[server.base_url])
    assert weights.read_bytes() == WEIGHTS
    assert [path for path, _ in server.requests].count("/2x1/elmo_2x1_options.json") == 1


def test_offline(server, monkeypatch):
    monkeypatch.setenv("RELMO_OFFLINE", "1")
    with pytest.raises(FormatError, match=r"'mine' is not in .*RELMO_OFFLINE.*with their options"):
        fetch(MODEL, base_urls=[server.base_url])
    assert server.requests == []
    monkeypatch.setenv("RELMO_OFFLINE", "0")
    paths = fetch(MODEL, base_urls=[server.base_url])
    monkeypatch.setenv("RELMO_OFFLINE", "1")
    assert fetch(MODEL, base_urls=[server.base_url]) == paths
    assert len(server.requests) == 2


def test_not_found_tries_the_older_address_without_retry(new_server):
    gone, older = new_server(), new_server()
    gone.plan.extend([Answer(b"", status=404)] * 2)
    _, weights = fetch(MODEL, base_urls=[gone.base_url, older.base_url])
    assert weights.read_bytes() == WEIGHTS
    assert (len(gone.requests), len(older.requests)) == (2, 2)


def test_error_names_addresses_what_happened_and_what_to_do(new_server):
    gone, dead = new_server(), new_server()
    gone.plan.append(Answer(b"", status=403))
    dead.shutdown()
    dead.server_close()
    with pytest.raises(FormatError) as raised:
        fetch(MODEL, base_urls=[gone.base_url, dead.base_url])
    message = str(raised.value)
    assert f"{gone.base_url}2x1/elmo_2x1_options.json: HTTP 403" in message
    assert f"{dead.base_url}2x1/elmo_2x1_options.json: " in message
    assert "refused" in message
    assert "(tried 4 times)" in message
    assert "by hand and give the weights as the model, with their options" in message
    assert raised.value.settings == ("model", "options")


def test_without_a_network_it_gives_up_at_once(monkeypatch, tmp_path):
    def look_up(*_, **__):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    paused = []
    monkeypatch.setattr("time.sleep", paused.append)
    with pytest.raises(FormatError, match=r"name resolution.* \(tried once\)"):
        fetch(MODEL, base_urls=["http://a.invalid/"])
    assert not paused
    (tmp_path / "weights.hdf5.partial").write_bytes(b"begun")  # the network may come back
    with pytest.raises(FormatError, match=r"\(tried 4 times\)"):
        download(["http://a.invalid/"], tmp_path / "weights.hdf5")
    assert len(paused) == 3


# Cut connections


def test_a_cut_download_is_resumed(server, weights):
    server.plan.append(Answer(cut=CUT))
    download([server.base_url], weights, n_bytes=MODEL.bytes, sha256=MODEL.sha256)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert server.requests[1][1]["If-Range"] == '"one"'
    assert leftovers(weights) == {"weights.hdf5"}


def test_a_cut_download_is_resumed_by_a_later_call(server, weights, monkeypatch):
    monkeypatch.setattr(module, "RETRY_PAUSES", ())
    server.plan.append(Answer(cut=CUT))
    with pytest.raises(FormatError, match=r"lost after 30,000 of 102,408 bytes"):
        download([server.base_url], weights)
    assert not weights.exists()
    assert leftovers(weights) == {"weights.hdf5.partial", "weights.hdf5.tag"}
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, f"bytes={CUT}-"]


def test_every_try_continues_the_one_before(server, weights):
    server.plan.extend([Answer(cut=CUT)] * 3)
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, "bytes=30000-", "bytes=60000-", "bytes=90000-"]


def test_the_older_address_continues_what_the_first_began(new_server, weights, monkeypatch):
    monkeypatch.setattr(module, "RETRY_PAUSES", ())
    first, older = new_server(), new_server()
    first.plan.append(Answer(cut=CUT))
    download([first.base_url, older.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert older.ranges == [f"bytes={CUT}-"]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_resumed_by_date_where_no_strong_etag_is_given(server, weights, etag):
    headers = {"ETag": etag, "Last-Modified": "Tue, 13 Feb 2018 10:00:00 GMT"}
    server.plan.extend([Answer(headers=headers, cut=CUT), Answer(headers=headers)])
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert server.requests[1][1]["If-Range"] == headers["Last-Modified"]


def test_started_anew_where_no_validator_is_given(server, weights):
    server.plan.append(Answer(headers={}, cut=CUT))
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, None]


@pytest.mark.parametrize("damage", [b"", b'"one"\r\nHost: elsewhere'])
def test_started_anew_where_the_remembered_validator_is_damaged(server, weights, damage):
    weights.parent.mkdir()
    weights.with_name("weights.hdf5.partial").write_bytes(NEWER[:CUT])
    weights.with_name("weights.hdf5.tag").write_bytes(damage)
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None]


def test_a_server_that_ignores_range_restarts_cleanly(server, weights):
    server.plan.extend([Answer(cut=CUT), Answer(ignore_range=True)])
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, f"bytes={CUT}-"]


def test_a_changed_file_is_not_glued_to_the_old_one(server, weights):
    changed = Answer(NEWER, headers={"ETag": '"two"'})
    server.plan.extend([Answer(cut=CUT), changed])
    download([server.base_url], weights)
    assert weights.read_bytes() == NEWER
    assert server.ranges == [None, f"bytes={CUT}-"]


def test_nor_when_the_server_ignores_if_range(server, weights):
    changed = Answer(NEWER, headers={"ETag": '"two"'}, ignore_if_range=True)
    server.plan.extend([Answer(cut=CUT), changed, changed])
    download([server.base_url], weights)
    assert weights.read_bytes() == NEWER
    assert server.ranges == [None, f"bytes={CUT}-", None]


def test_a_rest_that_begins_elsewhere_is_refused(server, weights):
    elsewhere = {"ETag": '"one"', "Content-Range": "bytes 5-102407/102408"}
    server.plan.extend([Answer(cut=CUT), Answer(headers=elsewhere)])
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, f"bytes={CUT}-", None]


@pytest.mark.parametrize(("surplus", "n_requests"), [(0, 1), (7, 2)])
def test_range_not_satisfiable(server, weights, surplus, n_requests):
    """The partial file is whole (416 says so), or longer than the server's file."""
    weights.parent.mkdir()
    weights.with_name("weights.hdf5.partial").write_bytes(WEIGHTS + bytes(surplus))
    weights.with_name("weights.hdf5.tag").write_text('"one"')
    download([server.base_url], weights, n_bytes=MODEL.bytes, sha256=MODEL.sha256)
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [f"bytes={len(WEIGHTS) + surplus}-", None][:n_requests]


def test_retries_pause_longer_each_time(server, weights, monkeypatch):
    pauses = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    server.plan.extend([Answer(b"", status=status) for status in (503, 500, 429)])
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert pauses == [0.01, 0.02, 0.03]


def test_gives_up_after_the_last_retry(server, weights):
    server.plan.extend([Answer(b"", status=503)] * 9)
    with pytest.raises(FormatError, match=r"127\.0\.0\.1.*HTTP 503 .*\(tried 4 times\)"):
        download([server.base_url], weights)
    assert len(server.requests) == 4


def test_a_stalled_server_is_left(server, weights, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    server.plan.append(Answer(delay=1.0))
    begin = time.monotonic()
    download([server.base_url], weights)
    assert time.monotonic() - begin < 0.9
    assert weights.read_bytes() == WEIGHTS
    assert len(server.requests) == 2


# Wrong answers


def test_wrong_bytes_are_removed_and_the_older_address_asked(new_server, weights):
    wrong, right = new_server(), new_server()
    wrong.plan.append(Answer(NEWER))
    download([wrong.base_url, right.base_url], weights, sha256=MODEL.sha256)
    assert weights.read_bytes() == WEIGHTS
    assert right.ranges == [None]


def test_wrong_checksum_says_expected_and_found(server, weights):
    server.plan.append(Answer(NEWER))
    found = hashlib.sha256(NEWER).hexdigest()
    with pytest.raises(FormatError, match=f"expected sha256 {MODEL.sha256}, found {found}"):
        download([server.base_url], weights, n_bytes=len(WEIGHTS), sha256=MODEL.sha256)
    assert len(server.requests) == 1
    assert leftovers(weights) == set()


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("weights.hdf5", b"<!DOCTYPE html><p>Log in", r"an HDF5 file, found .*<!DOCTYP"),
        ("weights.hdf5", b"", "an HDF5 file"),
        ("options.json", b"<!DOCTYPE html><p>Log in", r"a JSON object, found .*<!DOCTYP"),
        ("options.json", b"[1, 2]", "a JSON object"),
        ("options.json", b"[" * 100_000, "a JSON object"),
        ("options.json", b"\xff\xfe\xfd", "a JSON object"),
    ],
)
def test_a_page_instead_of_the_file(server, tmp_path, name, body, message):
    server.plan.append(Answer(body))
    with pytest.raises(FormatError, match=message):
        download([server.base_url], tmp_path / name)
    assert leftovers(tmp_path / name) == set()


@pytest.mark.parametrize("headers", [{"Content-Type": "text/html"}, {"Content-Type": None}])
def test_a_page_does_not_spoil_what_has_arrived(server, weights, headers):
    page = Answer(b"<!DOCTYPE html><p>Log in", headers=headers)
    server.plan.extend([Answer(cut=CUT), page])
    with pytest.raises(FormatError, match=r"found (a web page|24)"):
        download([server.base_url], weights, n_bytes=len(WEIGHTS))
    download([server.base_url], weights, n_bytes=len(WEIGHTS))
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, f"bytes={CUT}-", f"bytes={CUT}-"]


def test_a_wrong_file_is_not_continued(server, weights, monkeypatch):
    monkeypatch.setattr(module, "RETRY_PAUSES", ())
    server.plan.append(Answer(WEIGHTS + NEWER, cut=CUT))
    with pytest.raises(FormatError, match="lost after"):
        download([server.base_url], weights)
    server.plan.append(Answer(WEIGHTS + NEWER))
    with pytest.raises(FormatError, match="expected 102,408 bytes, found 204,816"):
        download([server.base_url], weights, n_bytes=len(WEIGHTS))
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert leftovers(weights) == set()


def test_known_size_is_checked_before_the_body_is_read(server, weights):
    server.plan.append(Answer(headers={"Content-Length": "123456"}))
    with pytest.raises(FormatError, match="expected 102,408 bytes, found 123,456"):
        download([server.base_url], weights, n_bytes=len(WEIGHTS))
    assert leftovers(weights) == set()


@pytest.mark.parametrize(
    ("name", "length", "limit"),
    [("weights.hdf5", 2**31 + 1, "2,147,483,648"), ("options.json", 1_000_001, "1,000,000")],
)
def test_absurd_size_is_refused(server, tmp_path, name, length, limit):
    server.plan.append(Answer(headers={"Content-Length": str(length)}))
    with pytest.raises(FormatError, match=f"expected at most {limit} bytes, found {length:,}"):
        download([server.base_url], tmp_path / name)
    assert leftovers(tmp_path / name) == set()


@pytest.mark.parametrize("length", [None, "-5", "many"])
def test_an_answer_without_length_is_refused(server, weights, length):
    server.plan.append(Answer(headers={"Content-Length": length}))
    with pytest.raises(FormatError, match="no length"):
        download([server.base_url], weights)
    assert not weights.exists()


def test_more_announced_than_sent(server, weights):
    lie = Answer(headers={"Content-Length": str(len(WEIGHTS) + 10)})
    server.plan.extend([lie] * 4)
    with pytest.raises(FormatError, match=r"lost after 102,408 of 102,418 bytes"):
        download([server.base_url], weights)
    assert not weights.exists()


def test_no_more_is_read_than_announced(server, weights):
    server.plan.append(Answer(WEIGHTS + b"surplus", headers={"Content-Length": "102408"}))
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS


# Redirects


def test_redirect_to_http_is_followed(server, weights):
    there = {"Location": f"{server.base_url}there", "Content-Length": "0"}
    server.plan.append(Answer(b"", status=302, headers=there))
    download([server.base_url], weights)
    assert weights.read_bytes() == WEIGHTS
    assert [path for path, _ in server.requests] == ["/", "/there"]


@pytest.mark.parametrize("scheme", ["file", "ftp", "FILE"])
def test_redirect_to_another_scheme_is_refused(server, weights, tmp_path, scheme):
    (tmp_path / "local").write_bytes(WEIGHTS)
    there = {"Location": f"{scheme}://localhost{tmp_path}/local", "Content-Length": "0"}
    server.plan.append(Answer(b"", status=302, headers=there))
    with pytest.raises(FormatError, match=r"HTTP 302 .*(unsafe|not allowed)"):
        download([server.base_url], weights)
    assert len(server.requests) == 1
    assert not weights.exists()


def test_redirect_from_https_to_http_is_refused():
    asked = Request("https://example.org/a")
    follow = module._Redirects().redirect_request
    with pytest.raises(HTTPError, match=r"unsafe redirect to http://example\.org/b"):
        follow(asked, None, 302, "Found", {}, "http://example.org/b")
    assert follow(asked, None, 302, "Found", {}, "https://example.org/b").type == "https"


# The disk, and other processes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(server, weights):
    weights.parent.mkdir()
    weights.with_name("weights.hdf5.partial").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"partial: No space left.*RELMO_CACHE"):
        download([server.base_url, server.base_url], weights)
    assert len(server.requests) == 1
    assert not weights.exists()


def test_cache_that_cannot_be_written(server):
    cache_directory().write_text("a file where the directory should be")
    with pytest.raises(DataError, match="set RELMO_CACHE"):
        fetch(MODEL, base_urls=[server.base_url])
    assert server.requests == []


def test_a_disk_without_locks(server, weights, monkeypatch):
    def no_locks(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module, "_try_lock", no_locks)
    with pytest.raises(DataError, match=r"lock: No locks available.*set RELMO_CACHE"):
        download([server.base_url], weights)
    assert server.requests == []


# The package's own __init__ loads torch: seconds by which the children would miss each other.
FETCH = f"""
import sys, types
package = sys.modules["relmo.formats"] = types.ModuleType("relmo.formats")
package.__path__ = {[str(Path(module.__file__).parent)]!r}
from relmo.formats.published import PublishedModel, fetch
fetch({MODEL!r}, base_urls=sys.argv[1:])
"""


@pytest.mark.slow
def test_processes_at_the_same_time_download_once(server):
    server.plan.append(Answer(OPTIONS, delay=0.5))
    command = [sys.executable, "-c", FETCH, server.base_url]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert is_cached(MODEL)
    assert (cache_directory() / "mine" / "weights.hdf5").read_bytes() == WEIGHTS
    assert len(server.requests) == 2


def test_a_killed_download_frees_its_lock_and_is_resumed(server):
    go_on = threading.Event()
    server.plan.extend([Answer(OPTIONS), Answer(cut=CUT, then_wait=go_on)])
    child = subprocess.Popen([sys.executable, "-c", FETCH, server.base_url])
    partial = cache_directory() / "mine" / "weights.hdf5.partial"
    deadline = time.monotonic() + 30
    while not (partial.is_file() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    child.wait(30)
    go_on.set()
    kept = partial.stat().st_size
    assert 0 < kept <= CUT
    _, weights = fetch(MODEL, base_urls=[server.base_url])
    assert weights.read_bytes() == WEIGHTS
    assert server.ranges == [None, None, f"bytes={kept}-"]
