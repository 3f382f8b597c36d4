"""Manifests are read as strictly as they are written."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.errors import FormatError
from relmo.features.manifest import DTYPES, MANIFEST, Manifest, Part, Table

SUM = "0" * 64
TABLES = (Table("ids", "int32", (), 10), Table("vectors", "float16", (2, 3), 4))
PARTS = (
    Part("ids", "ids.table", 0, 6, SUM),
    Part("vectors", "one", 0, 3, SUM),
    Part("ids", "ids.table", 6, 10, SUM),
)
MANIFEST_ONE = Manifest("features", "abc", {"dtype": "float16", "n": 3}, TABLES, PARTS)

names = st.from_regex(r"[a-z0-9_][a-z0-9._-]{0,9}", fullmatch=True).filter(lambda n: n != MANIFEST)


@st.composite
def manifests(draw):
    tables, parts = [], []
    for name in draw(st.lists(names, max_size=3, unique=True)):
        shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
        stops = sorted(draw(st.lists(st.integers(0, 50), max_size=4)))
        n_rows = stops[-1] + draw(st.integers(0, 3)) if stops else 7
        tables.append(Table(name, draw(st.sampled_from(sorted(DTYPES))), shape, n_rows))
        for start, stop in zip([0, *stops], stops, strict=False):
            parts.append(Part(name, f"{name}.table", start, stop, SUM))
    values = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)
    return Manifest("k", draw(st.text(max_size=9)), draw(values), tuple(tables), tuple(parts))


@settings(max_examples=40, deadline=None)
@given(manifests())
def test_what_is_written_is_read(manifest):
    assert Manifest.from_dict(json.loads(json.dumps(manifest.as_dict()))) == manifest


def test_written_and_read_as_a_file(tmp_path):
    MANIFEST_ONE.write(tmp_path)
    assert Manifest.read(tmp_path) == MANIFEST_ONE
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_what_is_there():
    assert not MANIFEST_ONE.is_complete
    assert MANIFEST_ONE.n_complete("ids") == 10
    assert MANIFEST_ONE.n_complete("vectors") == 3
    assert MANIFEST_ONE.n_bytes == 10 * 4 + 4 * 12
    assert MANIFEST_ONE.file_sizes() == {"ids.table": 40, "one": 36}
    assert MANIFEST_ONE.with_parts(Part("vectors", "two", 3, 4, SUM)).is_complete
    with pytest.raises(FormatError, match="no table 'other'"):
        MANIFEST_ONE.table("other")


def changed(table=None, part=None, **values):
    found = json.loads(json.dumps(MANIFEST_ONE.as_dict()))
    if table is not None:
        found["tables"][0] |= table
    if part is not None:
        found["parts"][0] |= part
    return {**found, **values}


WRONG = {
    "nothing": None,
    "a list": [],
    "no version": {},
    "another version": changed(format_version=2),
    "an unknown field": changed(more=1),
    "a missing field": {k: v for k, v in changed().items() if k != "kind"},
    "kind": changed(kind=1),
    "identity": changed(identity=None),
    "settings": changed(settings=[]),
    "tables": changed(tables={}),
    "a table": changed(tables=[1]),
    "parts": changed(parts="all"),
    "a part": changed(parts=[None]),
    "dtype": changed(table={"dtype": "object"}),
    "dtype that is none": changed(table={"dtype": ["int32"]}),
    "shape": changed(table={"shape": 3}),
    "negative shape": changed(table={"shape": [-1]}),
    "long shape": changed(table={"shape": [1] * 9}),
    "huge shape": changed(table={"shape": [1 << 40, 1 << 40]}),
    "rows": changed(table={"n_rows": -1}),
    "rows that are true": changed(table={"n_rows": True}),
    "rows that are half": changed(table={"n_rows": 1.5}),
    "fewer rows than parts": changed(table={"n_rows": 9}),
    "the same name twice": changed(table={"name": "vectors"}),
    "an unknown table": changed(part={"table": "other"}),
    "a gap": changed(part={"stop": 5}),
    "an overlap": changed(part={"stop": 7}),
    "not from the start": changed(part={"start": 1}),
    "backwards": changed(part={"start": 7, "stop": 6}),
    "checksum": changed(part={"sha256": "0"}),
    "two tables in a file": changed(part={"file": "one"}),
    "a path": changed(part={"file": "../one"}),
    "an absolute path": changed(part={"file": "/etc/passwd"}),
    "a path of windows": changed(part={"file": "..\\one"}),
    "a hidden file": changed(part={"file": ".one"}),
    "no file name": changed(part={"file": ""}),
    "the manifest itself": changed(part={"file": MANIFEST}),
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG)
def test_wrong_manifests_are_refused(values, tmp_path):
    with pytest.raises(FormatError):
        Manifest.from_dict(values)
    (tmp_path / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(FormatError, match="is damaged"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": NaN'])
def test_files_that_are_no_manifest(data, tmp_path):
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(FormatError, match="is damaged"):
        Manifest.read(tmp_path)


def test_a_missing_manifest(tmp_path):
    with pytest.raises(FormatError, match="Cannot read"):
        Manifest.read(tmp_path)


def test_parts_must_follow_each_other():
    with pytest.raises(FormatError, match="goes from row 2 to 4, expected from 3 to at most 4"):
        MANIFEST_ONE.with_parts(Part("vectors", "two", 2, 4, SUM))


def test_parts_of_one_file_are_checked_one_after_the_other(tmp_path):
    (tmp_path / "file").write_bytes(b"abcdefgh")
    sums = (
        "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589",  # of abcd
        "e5e088a0b66163a0a26a5e053d2a4496dc16ab6e0e3dd1adf2d16aa84a078c9d",  # of efgh
    )
    parts = tuple(Part("t", "file", i, i + 1, sums[i]) for i in range(2))
    manifest = Manifest("k", "i", {}, (Table("t", "int32", (), 2), *TABLES[:1]), parts)
    manifest.check_sizes(tmp_path)
    manifest.check_sums(tmp_path)
    manifest.check_sums(tmp_path, frozenset(["ids"]))
    wrong = replace(manifest, parts=(parts[0], Part(**asdict(parts[1]) | {"sha256": SUM})))
    wrong.check_sums(tmp_path, frozenset(["ids"]))
    with pytest.raises(FormatError, match="rows 1 to 2 have another checksum"):
        wrong.check_sums(tmp_path)
    (tmp_path / "file").write_bytes(b"abcdefg")
    with pytest.raises(FormatError, match="of 7 bytes, expected 8"):
        manifest.check_sizes(tmp_path)
