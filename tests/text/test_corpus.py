import bz2
import gc
import gzip
import io
import itertools
import random
import re
import subprocess
import sys
import tracemalloc
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError
from relmo.text import corpus
from relmo.text.corpus import find_texts, read_lines

ENCODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037", "gb18030", "utf-8-sig"]


@pytest.fixture
def file(tmp_path):
    def write(data):
        path = tmp_path / "text.txt"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\n\nb", ["a", "", "", "b"]),
        (b"a\r\nb\rc\r\r\n\r\n", ["a", "b\rc\r", ""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        ("a\u2028b\x85c\x0bd\x0c\x1ce\n".encode(), ["a\u2028b\x85c\x0bd\x0c\x1ce"]),
        (b"zero\0byte\n", ["zero\0byte"]),
    ],
)
def test_what_a_line_is(file, data, lines):
    assert list(read_lines(file(data))) == lines


LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), max_size=9))


@given(lines=LINES, encoding=st.sampled_from(ENCODINGS), chunk=st.integers(1, 9), end=st.booleans())
def test_any_encoding_in_any_chunks(tmp_path_factory, lines, encoding, chunk, end):
    if encoding == "cp037":  # a single-byte code in which a line ends at 0x25
        lines = [
            line.encode("cp037", "replace").decode("cp037").replace("\n", "") for line in lines
        ]
        lines = [line.replace("\r", "") for line in lines]
    text = "\n".join(lines) + "\n" * end
    path = tmp_path_factory.getbasetemp() / "chunks.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_CHUNK", chunk)
        found = list(read_lines(path, encoding=encoding))
    expected = text.split("\n")
    assert found == (expected[:-1] if expected[-1] == "" else expected)


@given(
    before=LINES,
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32"]),
    chunk=st.integers(1, 40),
)
def test_the_place_of_a_bad_byte(tmp_path_factory, before, encoding, chunk):
    bad = {"utf-8": b"\xff", "utf-16-be": b"\xdc\x00", "utf-32": b"\xff\xff\xff\xff"}
    bad = bad.get(encoding.removesuffix("-sig"), b"\x00\xdc")
    good = "\n".join(["x", *before]).encode(encoding)
    last = len("\n".join(["x", *before]).rsplit("\n", 1)[0].encode(encoding))
    newline = len("\n\n".encode(encoding)) - len("\n".encode(encoding))
    in_line = len(good) - last - newline if before else len(good)
    path = tmp_path_factory.getbasetemp() / "bad.txt"
    path.write_bytes(good + bad + "rest\nmore\n".encode(encoding))
    found = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError) as caught:  # noqa: PT012
        patch.setattr(corpus, "_CHUNK", chunk)
        for line in read_lines(path, encoding=encoding):
            found.append(line)
    assert found == ["x", *before][:-1]  # all lines before the bad one come out
    message = str(caught.value)
    assert message.startswith(f"{path}, line {len(before) + 1}: found the byte 0x{bad[0]:02x} ")
    assert f"offset {in_line} of the line (offset {len(good)} of the text)" in message
    assert "errors=replace" in message


def test_text_that_ends_within_a_character(file):
    with pytest.raises(DataError, match=r"line 2: found the byte 0xc3 at offset 1 .*offset 4 of"):
        list(read_lines(file(b"ab\nx\xc3")))


@pytest.mark.parametrize(
    ("errors", "line"), [("replace", "a\ufffdb"), ("ignore", "ab"), ("backslashreplace", r"a\xffb")]
)
def test_ways_to_live_with_bad_bytes(file, errors, line):
    assert list(read_lines(file(b"a\xffb\nc"), errors=errors)) == [line, "c"]


@pytest.mark.parametrize("encoding", ["nonsense", "hex", "idna", "undefined", "", "utf\0"])
def test_unknown_encoding(file, encoding):
    with pytest.raises(ConfigError, match="Unknown encoding"):
        read_lines(file(b"a"), encoding=encoding)


def test_unknown_errors(file):
    with pytest.raises(ConfigError, match=r"errors, 'xmlcharrefreplace'.*strict, replace"):
        read_lines(file(b"a"), errors="xmlcharrefreplace")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_no_byte_order_mark_where_one_is_needed(file, encoding):
    data = "no mark\n".encode(f"{encoding}-le")
    with pytest.raises(DataError, match=rf"such as {encoding}-le"):
        list(read_lines(file(data), encoding=encoding))


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(DataError, match=r"missing\.txt: No such file"):
        read_lines(tmp_path / "missing.txt")
    with pytest.raises(DataError, match="Is a directory"):
        read_lines(tmp_path)
    with pytest.raises(DataError, match="null"):
        read_lines("a\0b")


def zstd_compress(data):
    return pytest.importorskip("zstandard").compress(data)


PACKERS = {"gzip": gzip.compress, "bzip2": bz2.compress, "zstd": zstd_compress}


@pytest.mark.parametrize("packing", PACKERS)
def test_packed_text_by_content(file, packing):
    pack = PACKERS[packing]
    packed = pack("é\r\nb".encode()) + pack(b"c\n")  # two members are one text
    assert list(read_lines(file(packed))) == ["é", "bc"]
    assert list(read_lines(file(pack(b"")))) == []


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_packed_text(file, packing, damage):
    letters = random.Random(1).choices(b"abcdefgh\n", k=100_000)
    packed = PACKERS[packing](bytes(letters))
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes(255 - b for b in packed[middle : middle + 9])
    packed = packed[:-9] if damage == "cut" else flipped + packed[middle + 9 :]
    if packing == "zstd" and damage == "flip":  # its literals may be anything; its blocks may not
        packed = packed[:5] + b"\xff" * 20 + packed[25:]
    with pytest.raises(DataError, match=rf"text\.txt is damaged {packing}: .*compress it again"):
        list(read_lines(file(packed)))


def test_zstd_without_its_package(file, monkeypatch):
    packed = zstd_compress(b"a\n")
    if sys.version_info >= (3, 14):
        pytest.skip("zstd is part of Python")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"text\.txt is compressed by zstd.*'relmo\[zstd\]'"):
        list(read_lines(file(packed)))


def test_zstd_that_unpacks_to_a_thousand_times_its_size(file):
    line = b"a line of text " * 1000 + b"\n"
    path = file(zstd_compress(line * 3000))  # 45 MB
    assert path.stat().st_size < 10_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(path)) == 3000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(pack, monkeypatch):
    program = "from relmo.text.corpus import read_lines; print([*read_lines('-')])"
    data = pack(b"\xef\xbb\xbfone\r\n\ntwo")
    run = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True)
    assert run.stdout.decode().strip() == "['one', '', 'two']", run.stderr
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert list(read_lines("-")) == ["one", "", "two"]


def test_closed_standard_input(file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="closed"):
        read_lines("-")
    assert list(read_lines(file(b"a"))) == ["a"]


def test_standard_input_line_by_line():
    """A line that has arrived comes out while the writer is still there."""
    program = (
        "from relmo.text.corpus import read_lines\nfor l in read_lines('-'): print(l, flush=1)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"first line\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"first line\n"


def test_memory_does_not_grow_with_the_number_of_lines(file):
    path = file(b"a line of some length\n" * 200_000)  # 4.4 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(path)) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_line_of_many_chunks_takes_linear_time(file, monkeypatch):
    monkeypatch.setattr(corpus, "_CHUNK", 16)
    path = file(b"x" * 2_000_000 + b"\ny")  # quadratic joining would copy 125 GB
    assert [len(line) for line in read_lines(path)] == [2_000_000, 1]


@pytest.mark.parametrize("packing", [None, *PACKERS])
def test_advance_hears_of_every_byte_of_the_file(file, packing):
    data = b"some text\n" * 50_000
    path = file(PACKERS[packing](data) if packing else data)
    heard = []
    assert len(list(read_lines(path, advance=heard.append))) == 50_000
    assert sum(heard) == path.stat().st_size


def test_long_lines_come_in_pieces(file, monkeypatch):
    monkeypatch.setattr(corpus, "_CHUNK", 10)
    words = [f"word{i}" for i in range(100)]
    path = file(" ".join(words).encode() + b"\nnext\n" + b"x" * 95)
    *pieces, end, first, second = read_lines(path, longest=50)
    assert end == "next"
    assert first + second == "x" * 95
    assert 50 <= len(first) < 60
    assert "".join(pieces).split() == words
    assert len(pieces) > 5
    assert all(len(piece) < 60 and piece.endswith(" ") for piece in pieces[:-1])


def test_the_place_of_a_bad_byte_in_a_line_that_was_cut(file, monkeypatch):
    monkeypatch.setattr(corpus, "_CHUNK", 7)
    with pytest.raises(DataError, match=r"line 2: .*offset 93 of the line \(offset 95 of the text"):
        list(read_lines(file(b"a\n" + "é ".encode() * 31 + b"\xff"), longest=20))


# ---- which files --------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path, monkeypatch):
    for name in ("b.txt", "a.txt", "d/c.txt", "d/e/f.gz", "d/.hidden", ".git/x.txt", "g[1].txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["b.txt", "a.txt"], ["b.txt", "a.txt"]),
        (["d"], ["d/c.txt", "d/e/f.gz"]),
        (["."], ["a.txt", "b.txt", "d/c.txt", "d/e/f.gz", "g[1].txt"]),
        (["*.txt"], ["a.txt", "b.txt", "g[1].txt"]),
        (["**/*.txt"], ["a.txt", "b.txt", "d/c.txt", "g[1].txt"]),
        (["d/*"], ["d/c.txt", "d/e/f.gz"]),
        (["g[1].txt"], ["g[1].txt"]),
        (["d/.hidden"], ["d/.hidden"]),
        (["-", "a.txt", "-"], ["-", "a.txt"]),
        (["d/c.txt", "d", "./d/c.txt", "d/../d/c.txt"], ["d/c.txt", "d/e/f.gz"]),
        ([], []),
    ],
)
def test_find_texts(texts, arguments, expected):
    assert find_texts(arguments) == expected
    absolute = [a if a == "-" else str(texts / a) for a in arguments]
    assert find_texts(absolute) == [e if e == "-" else str(texts / e) for e in expected]


@pytest.mark.parametrize("argument", ["missing.txt", "*.md", "empty", "", "a\0b", "x" * 300])
def test_what_matches_nothing_is_named(texts, argument):
    with pytest.raises(DataError, match=re.escape(f"{argument!r}")):
        find_texts(["a.txt", argument])


def test_a_file_that_is_not_read_is_closed(tmp_path):
    (tmp_path / "text").write_text("a\nb\n")
    for n in (0, 1):
        lines = read_lines(tmp_path / "text")
        assert list(itertools.islice(lines, n)) == ["a"][:n]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            del lines
            gc.collect()
        assert not found
