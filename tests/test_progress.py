import os
import re
import subprocess
import sys
import threading

import pytest

from relmo import progress as module
from relmo.progress import progress

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")

# A child process, so that its stderr is a real terminal and its imports are its own.
PRELUDE = """
import sys, time
from relmo import progress as module
from relmo.progress import progress
"""
SLOW = """
module.DELAY_SECONDS = 0.2
with progress("Embedding [b]", 1_000, {unit!r}) as advance:
    for _ in range(10):
        time.sleep(0.1)
        advance(20)
        print("data")
print("rich.progress" in sys.modules)
"""
QUICK = """
with progress("Embedding", 10) as advance:
    advance(10)
print("rich" in sys.modules)
"""
# The second bar would overwrite the first one: it must stay hidden.
NESTED = """
module.DELAY_SECONDS = 0.05
with progress("outer", 10) as outer:
    time.sleep(0.4)
    with progress("inner", 10) as inner:
        time.sleep(0.4)
        inner(1)
with progress("after", 10):
    time.sleep(0.4)
"""


def run_in_terminal(script: str) -> tuple[str, str]:
    """Return what the script writes to stdout (a pipe) and to stderr (a terminal)."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        text=True,
    )
    os.close(theirs)
    seen = bytearray()
    reader = threading.Thread(target=read_all, args=(ours, seen))
    reader.start()
    stdout, _ = child.communicate(timeout=60)
    reader.join(timeout=60)
    os.close(ours)
    assert child.returncode == 0, seen.decode()
    return stdout, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


def read_all(descriptor: int, into: bytearray) -> None:
    try:
        while block := os.read(descriptor, 4096):
            into += block
    except OSError:  # how Linux says that the other end is closed
        pass


@pytest.mark.slow
def test_bar_shows_count_rate_and_time_left():
    stdout, stderr = run_in_terminal(SLOW.format(unit="sentences"))
    assert "Embedding [b]" in stderr
    counts = re.findall(r"(\d+)/1,000  ([\d.]+) sentences/s  0:00:(\d\d) left", stderr)
    assert counts
    done, rate, left = (float(value) for value in counts[-1])
    assert 60 <= done <= 200
    assert 5 < rate < 250  # 200 at most: the child sleeps 0.1 s for every 20
    assert left == pytest.approx((1000 - done) / rate, abs=1.5)
    # Data stays on stdout while a bar is up.
    assert stdout.split() == ["data"] * 10 + ["True"]
    assert "data" not in stderr


@pytest.mark.slow
def test_a_note_stands_after_the_rate():
    _, stderr = run_in_terminal(SLOW.format(unit="words").replace("(20)", "(20, 0.5, 'loss 4.2')"))
    assert re.search(r"\d+/\d+  [\d.]+ words/s  0:00:\d\d left  loss 4\.2", stderr)


@pytest.mark.slow
def test_bytes_are_shown_humanly():
    script = SLOW.format(unit="bytes").replace("1_000", "10**9").replace("20", "10**7")
    _, stderr = run_in_terminal(script)
    assert re.search(r"\d+\.\d MB/1\.0 GB  \d+\.\d MB/s  0:00:\d\d left", stderr)


def test_quick_work_on_a_terminal_writes_nothing_and_imports_no_rich():
    assert run_in_terminal(QUICK) == ("False\n", "")


@pytest.mark.slow
def test_a_bar_within_a_bar_stays_hidden():
    _, stderr = run_in_terminal(NESTED)
    assert "outer" in stderr
    assert "inner" not in stderr
    assert "after" in stderr


@pytest.mark.parametrize(
    "script", [QUICK, pytest.param(SLOW.format(unit="items"), marks=pytest.mark.slow)]
)
def test_nothing_is_written_to_a_pipe(script):
    child = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0
    assert child.stderr == ""
    assert child.stdout.endswith("False\n")  # rich was not even imported


def test_the_delay_is_two_seconds():
    assert module.DELAY_SECONDS == 2.0


def test_no_stderr_at_all(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    with progress("Embedding") as advance:
        assert advance(1) is None
    assert module._screen.acquire(blocking=False)  # no bar holds the screen
    module._screen.release()


def test_advance_from_many_threads_loses_nothing():
    bar = module._Bar("Embedding", None, "items")
    threads = [
        threading.Thread(target=lambda: [bar.advance(1) for _ in range(2_000)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bar._done == 16_000


def test_an_error_inside_passes_through_and_stops_the_timer(monkeypatch):
    shown = []
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.05)
    monkeypatch.setattr(module._Bar, "show", lambda bar: shown.append(bar))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(ValueError, match="inside"), progress("Embedding"):
        raise ValueError("inside")
    assert not any(
        isinstance(t, threading.Timer) and not t.finished.is_set() for t in threading.enumerate()
    )
    assert shown == []


def test_a_share_tells_the_total():
    bar = module._Bar("Embedding", None, "words")
    bar.advance(10, 0.25)
    assert bar._total == 40
    bar.advance(10, None)  # as from a pipe, whose length nobody knows
    assert bar._total == 40
