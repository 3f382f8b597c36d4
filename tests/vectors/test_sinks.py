import io
import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open

from relmo.errors import ConfigError, DataError
from relmo.vectors import sinks
from relmo.vectors.sinks import SINKS, check_sink, open_sink

ENDINGS = sorted(SINKS)
same_path = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read_hdf5(path):
    with h5py.File(path) as file:
        index = json.loads(file["sentence_to_index"][0])
        arrays = {int(name): file[name][()] for name in file if name != "sentence_to_index"}
        assert file["sentence_to_index"].shape == (1,)
        assert h5py.check_string_dtype(file["sentence_to_index"].dtype) == ("utf-8", None)
    return arrays, index


def read_safetensors(path):
    with safe_open(path, "numpy") as file:
        arrays = {int(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, json.loads(file.metadata()["sentences"])


def read_npz(path):
    with np.load(path, allow_pickle=False) as file:
        return {int(name): file[name] for name in file.files}, None


def read_jsonl(path, dtype="float32"):
    lines = [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]
    tokens = [line["tokens"] for line in lines]
    return {line["sentence"]: np.array(line["vectors"], dtype) for line in lines}, tokens


def read_parquet(path):
    table = pq.read_table(path)
    n_layers, dim = (int(table.schema.metadata[key]) for key in (b"n_layers", b"dim"))
    flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return table, flat.reshape(table.num_rows, n_layers, dim)


def bits(array):
    return array.view(np.uint32 if array.dtype == np.float32 else np.uint16)


@st.composite
def documents(draw):
    """Sentences of one width: their texts, tokens and vectors, (T, D) or (K, T, D)."""
    shape = draw(st.sampled_from([(3,), (1, 2), (3, 2)]))
    dtype = draw(st.sampled_from(["float32", "float16"]))
    values = st.floats(width=int(dtype[5:]), allow_nan=False, allow_infinity=False)
    document = []
    for n_tokens in draw(st.lists(st.integers(0, 3), max_size=4)):
        tokens = [draw(st.text(st.characters(codec="utf-8"), max_size=3)) for _ in range(n_tokens)]
        vectors = hnp.arrays("float32", (*shape[:-1], n_tokens, shape[-1]), elements=values)
        document.append((" ".join(tokens), tokens, draw(vectors)))
    return dtype, document


@pytest.mark.parametrize(  # .h5 is .hdf5
    "ending",
    [
        pytest.param(e, marks=pytest.mark.slow) if e in (".h5", ".npz", ".parquet") else e
        for e in ENDINGS
    ],
)
@given(case=documents())
@example(case=("float32", []))
@example(case=("float16", [("", [], np.zeros((3, 0, 2), np.float32))]))
@same_path
def test_round_trip(tmp_path, ending, case):
    dtype, document = case
    path = tmp_path / f"out{ending}"
    with open_sink(path, dtype=dtype) as sink:
        for text, tokens, vectors in document:
            sink.write(text, tokens, vectors)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    expected = [vectors.astype(dtype) for _, _, vectors in document]
    if ending == ".parquet":
        check_parquet(path, dtype, document, expected)
        return
    if ending == ".jsonl":
        arrays, tokens = read_jsonl(path, dtype)
        assert tokens == [tokens for _, tokens, _ in document]
    elif ending == ".npz":
        arrays, _ = read_npz(path)
    elif ending == ".safetensors":
        arrays, texts = read_safetensors(path)
        assert texts == [text for text, _, _ in document]
    else:
        arrays, index = read_hdf5(path)
        assert index == {text: str(n) for n, (text, _, _) in enumerate(document)}
    assert sorted(arrays) == list(range(len(expected)))
    for number, array in enumerate(expected):
        assert arrays[number].dtype == dtype
        if array.size or ending != ".jsonl":  # nested lists cannot say the width of nothing
            assert arrays[number].shape == array.shape
            np.testing.assert_array_equal(bits(arrays[number]), bits(array))


def check_parquet(path, dtype, document, expected):
    table, vectors = read_parquet(path)
    rows = [(n, i, t) for n, (_, tokens, _) in enumerate(document) for i, t in enumerate(tokens)]
    columns = (table[name].to_pylist() for name in ("sentence", "position", "token"))
    assert list(zip(*columns, strict=True)) == rows
    types = [table.schema.field(name).type for name in ("sentence", "position", "token")]
    assert types == [pa.int64(), pa.int32(), pa.string()]
    for number, array in enumerate(expected):
        assert vectors.dtype == dtype
        of_sentence = vectors[[row for row, (n, _, _) in enumerate(rows) if n == number]]
        layers = array if array.ndim == 3 else array[None]
        np.testing.assert_array_equal(bits(of_sentence), bits(layers.swapaxes(0, 1).copy()))


def test_the_last_of_equal_sentences_is_in_the_index(tmp_path):
    with open_sink(tmp_path / "out.h5") as sink:
        for _ in range(3):
            sink.write("a", ["a"], np.zeros((1, 2), np.float32))
    arrays, index = read_hdf5(tmp_path / "out.h5")
    assert len(arrays) == 3
    assert index == {"a": "2"}


def test_row_groups_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "_ROW_GROUP", 10_000)
    vectors = np.arange(60, dtype=np.float32).reshape(1, 60)
    with open_sink(tmp_path / "out.parquet") as sink:
        for _ in range(50):
            sink.write("a", ["a"], vectors)
        sink.write("", [], vectors[:0])
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)][:2] == [8, 8]
    table, found = read_parquet(tmp_path / "out.parquet")
    assert table.num_rows == 50
    assert (found == vectors).all()


def test_json_numbers_are_short_and_exact():
    random = np.random.default_rng(0)
    usual = random.standard_normal(200_000).astype(np.float32)
    patterns = random.integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    array = np.concatenate([usual, patterns[np.isfinite(patterns)], np.float32([0, -0.0, 0.1, 1])])
    text = sinks._json_numbers(array)
    np.testing.assert_array_equal(bits(np.array(json.loads(text), np.float32)), bits(array))
    assert text.endswith("0,-0.0,0.1,1]")
    digits = [len(number.lstrip("-0.")) for number in text[1:-1].split(",")[: len(usual)]]
    shortest = [len(number.lstrip("-0.")) for number in usual.astype(str).tolist()]
    assert sum(digits) <= sum(shortest)


def test_json_numbers_of_every_float16():
    array = np.arange(2**16, dtype=np.uint16).view(np.float16)
    array = array[np.isfinite(array)]
    text = sinks._json_numbers(array)
    np.testing.assert_array_equal(bits(np.array(json.loads(text), np.float16)), bits(array))


@pytest.mark.parametrize("ending", [".npz", ".hdf5", ".safetensors", ".parquet", ".jsonl"])
def test_same_vectors_same_bytes(tmp_path, ending):
    for name in ("a", "b"):
        with open_sink(tmp_path / f"{name}{ending}") as sink:
            sink.write("a b", ["a", "b"], np.ones((2, 3), np.float32))
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_interruption_leaves_the_old_file_alone(tmp_path, ending, error):
    path = tmp_path / f"out{ending}"
    path.write_text("old")

    def write():
        with open_sink(path) as sink:
            sink.write("a", ["a"], np.zeros((1, 4), np.float32))
            raise error

    with pytest.raises(error):
        write()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


class Failing(io.FileIO):
    """Fails at the n-th write, and a full disk is still full when it is asked again."""

    n_left = 0
    error = OSError(28, "No space left on device")

    def write(self, data):
        Failing.n_left -= 1
        if Failing.n_left == -1 or (Failing.n_left < 0 and isinstance(self.error, OSError)):
            raise self.error
        return super().write(data)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_failure_at_any_write(tmp_path, monkeypatch, ending, error):
    """Wherever a write fails or is interrupted, that is what comes out and nothing is left."""
    real = sinks.Path.open

    def opened(self, mode="r", **options):
        return Failing(self, "r+") if mode == "r+b" else real(self, mode, **options)

    monkeypatch.setattr(sinks.Path, "open", opened)
    monkeypatch.setattr(Failing, "error", error)

    def write(n_writes):
        Failing.n_left = n_writes
        with open_sink(tmp_path / f"out{ending}") as sink:
            for number in range(12):
                sink.write(str(number), ["a"], np.zeros((1, 3000), np.float32))
        return n_writes - Failing.n_left

    n_writes = write(10**6)
    (tmp_path / f"out{ending}").unlink()
    kind = DataError if isinstance(error, OSError) else KeyboardInterrupt
    for fail_at in range(0, n_writes, 1 + n_writes // 40):
        with pytest.raises(kind):
            write(fail_at)
        assert not list(tmp_path.iterdir())
    assert n_writes >= 2


FULL = """
    import resource, sys
    import numpy as np
    from relmo.errors import DataError
    from relmo.vectors.sinks import open_sink
    import pyarrow.parquet
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    try:
        with open_sink({path!r}) as sink:
            for number in range(40):
                sink.write(f"s{{number}}", ["a"], np.zeros((1, 2500), np.float32))
    except DataError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
"""


@pytest.mark.parametrize("limit", [20_000, pytest.param(399_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_full_disk_ends_cleanly(tmp_path, ending, limit):
    if ending in (".jsonl", ".parquet"):
        limit //= 100  # zeros are short there
    path = tmp_path / f"out{ending}"
    program = textwrap.dedent(FULL.format(limit=limit, path=str(path)))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert re.fullmatch(rf"Cannot write {path}: File too large\. .*\n", run.stderr), run.stderr
    assert run.returncode == 2
    assert not list(tmp_path.iterdir())


def test_the_header_of_safetensors_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "out.safetensors"
    monkeypatch.setattr(sinks, "_HEADER_LIMIT", 600)

    def write(n_sentences):
        with open_sink(path) as sink:
            for _ in range(n_sentences):
                sink.write('é "quoted"', ["a"], np.zeros((1, 2), np.float32))

    write(5)
    assert int.from_bytes(path.read_bytes()[:8], "little") <= 600
    with pytest.raises(DataError, match=r"header of \.safetensors is full"):
        write(6)
    assert len(read_safetensors(path)[0]) == 5


def run_on_stdout(program, **options):
    program = "import numpy as np\nfrom relmo.vectors.sinks import open_sink\n" + program
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, **options)


def test_standard_output():
    program = """print('before')
with open_sink('-') as sink: sink.write('é', ['é'], np.float32([[0.1, -0.0]]))
print('after')"""
    run = run_on_stdout(program, stdout=subprocess.PIPE)
    line = '{"sentence": 0, "tokens": ["é"], "vectors": [[0.1,-0.0]]}'
    assert run.stdout.decode() == f"before\n{line}\nafter\n"


def test_standard_output_without_a_file_below(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    with open_sink("-") as sink:
        sink.write("a", ["a"], np.float32([[1]]))
    assert json.loads(sys.stdout.buffer.getvalue())["vectors"] == [[1]]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_standard_output():
    program = """from relmo.errors import DataError
try:
    with open_sink('-') as sink: sink.write('a', ['a'], np.float32([[1]]))
except DataError as error:
    raise SystemExit(str(error))"""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        run = run_on_stdout(program, stdout=full)
    assert run.stderr == b"Cannot write to standard output: No space left on device.\n"


def test_a_reader_who_has_left_is_no_error_in_the_data():
    read, write = os.pipe()
    os.close(read)
    program = """try:
    with open_sink('-') as sink: sink.write('a', ['a'], np.float32([[1]]))
except BrokenPipeError: raise SystemExit(7)"""
    run = run_on_stdout(program, stdout=write)
    os.close(write)
    assert (run.returncode, run.stderr) == (7, b"")


@pytest.mark.parametrize("name", ["out.txt", "out", "hdf5", ""])
def test_unknown_ending(tmp_path, name):
    with pytest.raises(
        ConfigError, match=r"\.hdf5, \.h5, \.safetensors, \.npz, \.parquet, \.jsonl"
    ):
        check_sink(tmp_path / name)


def test_names_that_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match="no directory"):
        check_sink(tmp_path / "missing" / "out.npz")
    (tmp_path / "dir.npz").mkdir()
    with pytest.raises(DataError, match="not a file"):
        check_sink(tmp_path / "dir.npz")
    for good in ("-", tmp_path / "OUT.HDF5", str(tmp_path / "a.b.h5")):
        check_sink(good)
    assert [p.name for p in tmp_path.iterdir()] == ["dir.npz"]


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'relmo[parquet]'")):
        check_sink(tmp_path / "out.parquet")
    check_sink(tmp_path / "out.hdf5")


def test_wrong_arguments(tmp_path):
    with pytest.raises(ConfigError, match="float32 or float16"), open_sink("-", dtype="int8"):
        pytest.fail("the block must not run")
    wrong = pytest.raises(ValueError, match="2 tokens")
    with wrong, open_sink(tmp_path / "out.npz") as sink:
        sink.write("a b", ["a", "b"], np.zeros((1, 4), np.float32))


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e5), ("float32", np.nan)])
def test_values_that_are_not_finite(tmp_path, dtype, value):
    wrong = pytest.raises(DataError, match=rf"Sentence 0 .* not a finite {dtype}\. Write float32")
    with wrong, open_sink(tmp_path / "out.npz", dtype=dtype) as sink:
        sink.write("a", ["a"], np.float32([[value]]))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_more_members_than_a_plain_zip_can_count(tmp_path):
    with open_sink(tmp_path / "out.npz") as sink:
        for _ in range(65_537):
            sink.write("", [], np.zeros((0, 1), np.float32))
    with zipfile.ZipFile(tmp_path / "out.npz") as archive:
        assert len(archive.namelist()) == 65_537
