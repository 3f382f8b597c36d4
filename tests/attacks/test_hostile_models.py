"""Whatever a model file holds, relmo refuses it with a clear error and does nothing else."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import stat
import struct
import zipfile
from pathlib import Path

import h5py
import legacy
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relmo.errors import FormatError, RelmoError
from relmo.formats import native, read_model

SIZES = {"n_layers": 1, "dim": 5, "projection_dim": 3, "filters": [[1, 2], [2, 2]]}
SIZES |= {"n_highway": 1, "embedding": {"dim": 2}, "max_characters_per_token": 50}
OPTIONS = legacy.random_options(np.random.default_rng(0), **SIZES)
TENSORS = legacy.random_bilm_tf(np.random.default_rng(0), OPTIONS)
LSTM = "RNN_0/RNN/LSTMCell"

pytestmark = [
    pytest.mark.timeout(60),  # a hang is a failure, too
    pytest.mark.filterwarnings("ignore:Detected pickle protocol"),  # PyTorch's, before it refuses
]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    """Tests run in an empty directory; what a refused model wrote there would be found."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(work))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    assert list(work.iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} <= {"work", "model", "zip", "outside"}


@pytest.fixture
def model(tmp_path):
    """A good bilm-tf model, to be spoilt."""
    legacy.write_bilm_tf(tmp_path / "model", OPTIONS, TENSORS)
    return tmp_path / "model"


@pytest.fixture
def many_langs(tmp_path):
    legacy.write_many_langs(tmp_path / "model", np.random.default_rng(0))
    return tmp_path / "model"


def assert_refused(source, *parts, error=FormatError):
    """Refused with a message that names the file (its path begins with `source`) and `parts`."""
    before = {p: p.lstat().st_mtime_ns for p in source.rglob("*")}
    with pytest.raises(error) as caught:
        read_model(source)
    for part in (str(source), *parts):
        assert part in str(caught.value)
    assert {p: p.lstat().st_mtime_ns for p in source.rglob("*")} == before


def outcome(source):
    """Read a damaged model: what is left of it, or None. Any error but ours fails the test."""
    try:
        return read_model(source)
    except RelmoError as error:
        message = str(error)
    assert str(source) in message
    return None


# ---- HDF5: damage --------------------------------------------------------------------------------


def test_weights_cut_anywhere(model):
    path = model / "weights.hdf5"
    data = path.read_bytes()
    read_model(model)
    for cut in [0, 1, 7, 8, 9, *range(16, len(data), len(data) // 40), len(data) - 1]:
        path.write_bytes(data[:cut])
        assert_refused(model, "weights.hdf5")
        if cut >= 8:  # it still looks like HDF5
            with pytest.raises(FormatError, match=r"weights\.hdf5"):
                read_model(path)
        with pytest.raises(FormatError, match=r"weights\.hdf5"):
            read_model(weights=path, options=model / "options.json")


def test_missing_weights_and_missing_options(model):
    (model / "weights.hdf5").rename(model / "weights.txt")
    (model / "weights.txt").write_text("moved")
    assert_refused(model, "weights.txt", "options.json")
    legacy.write_bilm_tf(model, OPTIONS, TENSORS)
    (model / "options.json").unlink()
    assert_refused(model, "weights.hdf5")
    with pytest.raises(FormatError, match=r"weights\.hdf5 needs its options"):
        read_model(model / "weights.hdf5")


@pytest.mark.parametrize("zipped", [False, True])
def test_weights_with_wrong_bytes(model, tmp_path, zipped):
    path, rng = model / "weights.hdf5", random.Random(0)
    good = path.read_bytes()
    n_refused = 0
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
        path.write_bytes(data)
        source = pack(tmp_path, model) if zipped else model
        n_refused += outcome(source) is None
    assert n_refused > 8


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 2**14), st.binary(min_size=1, max_size=8)), max_size=4))
def test_weights_with_wrong_bytes_of_any_kind(model, changes):
    legacy.write_bilm_tf(model, OPTIONS, TENSORS)
    data = bytearray((model / "weights.hdf5").read_bytes())
    for place, value in changes:
        place %= len(data)
        data[place : place + len(value)] = value
    (model / "weights.hdf5").write_bytes(data)
    contents = outcome(model)
    assert contents is not None or changes


# ---- HDF5: trickery ------------------------------------------------------------------------------


def replace_dataset(model, name, make):
    """Put what `make(file)` creates under `name` in place of the dataset there."""
    with h5py.File(model / "weights.hdf5", "r+") as file:
        del file[name]
        make(file)


@pytest.mark.parametrize("name", ["char_embed", "CNN/W_cnn_0", f"{LSTM}/B", f"{LSTM}/W_P_0"])
@pytest.mark.parametrize("target", ["good.hdf5", "pipe", "none.hdf5", "/dev/zero"])
def test_external_links_are_not_followed(model, tmp_path, name, target):
    (tmp_path / "outside").mkdir()
    legacy.write_hdf5(tmp_path / "outside" / "good.hdf5", TENSORS)
    os.mkfifo(tmp_path / "outside" / "pipe")  # whoever opened it would wait for ever
    link = h5py.ExternalLink(tmp_path / "outside" / target, name)
    replace_dataset(model, name, lambda file: file.__setitem__(name, link))
    assert_refused(model, "weights.hdf5", name, "link")


@pytest.mark.parametrize("group", ["CNN", "CNN_high_0", "CNN_proj", "RNN_0", "RNN_0/RNN", LSTM])
def test_a_group_may_not_be_a_link_either(model, tmp_path, group):
    (tmp_path / "outside").mkdir()
    legacy.write_hdf5(tmp_path / "outside" / "good.hdf5", TENSORS)
    for link in (h5py.ExternalLink(tmp_path / "outside" / "good.hdf5", group), h5py.SoftLink("x")):
        replace_dataset(model, group, lambda file, link=link: file.__setitem__(group, link))
        assert_refused(model, "weights.hdf5", group, "link")


def test_soft_links_in_circles(model):
    def make(file):
        file["char_embed"] = h5py.SoftLink("/again")
        file["again"] = h5py.SoftLink("/char_embed")

    replace_dataset(model, "char_embed", make)
    assert_refused(model, "weights.hdf5", "char_embed", "link")


def test_groups_in_circles(model):
    def make(file):
        file["CNN"] = file["/"]
        file["W_cnn_0"] = file["/"]

    replace_dataset(model, "CNN", make)
    assert_refused(model, "weights.hdf5", "CNN/W_cnn_0", "not a dataset")


def test_a_softmax_that_is_a_link_or_a_group(model, tmp_path):
    (tmp_path / "outside").mkdir()
    legacy.write_hdf5(tmp_path / "outside" / "good.hdf5", {"W": np.zeros((4, 3), np.float32)})
    link = h5py.ExternalLink(tmp_path / "outside" / "good.hdf5", "W")
    with h5py.File(model / "softmax.hdf5", "w") as file:
        file["softmax/W"] = link
    assert_refused(model, "softmax.hdf5", "softmax/W", "link")
    with h5py.File(model / "softmax.hdf5", "w") as file:
        file.create_group("softmax/W")
    assert_refused(model, "softmax.hdf5", "softmax/W", "not a dataset")
    with h5py.File(model / "softmax.hdf5", "w") as file:
        file["softmax/W"] = np.float32(1)
    assert_refused(model, "softmax.hdf5", "softmax/W", "[]", "[any, 3]")


def test_external_storage_is_not_read(model, tmp_path):
    (tmp_path / "outside").mkdir()
    secret = tmp_path / "outside" / "secret"
    secret.write_bytes(bytes(261 * 2 * 4))
    replace_dataset(
        model,
        "char_embed",
        lambda file: file.create_dataset(
            "char_embed", (261, 2), "float32", external=[(str(secret), 0, 261 * 2 * 4)]
        ),
    )
    assert_refused(model, "weights.hdf5", "char_embed", "another file")


def test_virtual_datasets_are_not_read(model, tmp_path):
    (tmp_path / "outside").mkdir()
    legacy.write_hdf5(tmp_path / "outside" / "good.hdf5", TENSORS)
    layout = h5py.VirtualLayout((261, 2), "float32")
    layout[:] = h5py.VirtualSource(tmp_path / "outside" / "good.hdf5", "char_embed", (261, 2))
    replace_dataset(
        model, "char_embed", lambda file: file.create_virtual_dataset("char_embed", layout)
    )
    assert_refused(model, "weights.hdf5", "char_embed", "another file")


@pytest.mark.parametrize(
    "dtype",
    [
        "int32",
        "bool",
        "complex64",
        "S4",
        h5py.string_dtype(),
        h5py.ref_dtype,
        h5py.regionref_dtype,
        h5py.vlen_dtype(np.float32),
        h5py.enum_dtype({"a": 1}),
        np.dtype([("r", "f4"), ("i", "f4")]),
        np.dtype(("f4", (2,))),
    ],
    ids=str,
)
def test_datasets_of_other_kinds(model, dtype):
    replace_dataset(
        model, "char_embed", lambda file: file.create_dataset("char_embed", (261, 2), dtype)
    )
    assert_refused(model, "weights.hdf5", "char_embed")


def odd_float():
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(1 << 20)  # exponents beyond those of any float
    return kind


@pytest.mark.parametrize("kind", [odd_float(), h5py.h5t.UNIX_D32LE], ids=["odd-float", "time"])
def test_kinds_of_numbers_that_numpy_does_not_know(model, kind):
    space = h5py.h5s.create_simple((261, 2))
    replace_dataset(
        model, "char_embed", lambda file: h5py.h5d.create(file.id, b"char_embed", kind, space)
    )
    assert_refused(model, "weights.hdf5", "char_embed", "damaged")


@pytest.mark.parametrize("name", ["char_embed", f"{LSTM}/B"])
def test_things_that_are_no_datasets_or_hold_nothing(model, name):
    replace_dataset(model, name, lambda file: file.create_group(name))
    assert_refused(model, "weights.hdf5", name, "not a dataset")
    replace_dataset(model, name, lambda file: file.__setitem__(name, np.dtype("f4")))
    assert_refused(model, "weights.hdf5", name, "not a dataset")
    replace_dataset(model, name, lambda file: file.__setitem__(name, h5py.Empty("f4")))
    assert_refused(model, "weights.hdf5", name, "[]")
    replace_dataset(model, name, lambda file: file.__setitem__(name, np.float32(1)))
    assert_refused(model, "weights.hdf5", name, "[]")


# ---- HDF5: bombs ---------------------------------------------------------------------------------


def declare(file, name, shape, **more):
    """A dataset of any size that takes a few bytes: nothing of it is written."""
    file.create_dataset(name, shape, "float32", compression="gzip", **more)


def test_terabytes_that_the_options_do_not_ask_for(model):
    shape = (1 << 36, 2)
    replace_dataset(model, "char_embed", lambda file: declare(file, "char_embed", shape))
    assert_refused(model, "char_embed", str(list(shape)), "[261, 2]")


def test_a_hundred_gigabytes_that_the_options_do_ask_for(model):
    options = {**OPTIONS, "lstm": {**OPTIONS["lstm"], "dim": 65536, "projection_dim": 65536}}
    (model / "options.json").write_text(json.dumps(options))
    n_filters = sum(n for _, n in SIZES["filters"])
    with h5py.File(model / "weights.hdf5", "r+") as file:
        del file["CNN_proj"], file["RNN_0"]
        declare(file, "CNN_proj/W_proj", (n_filters, 65536))
        declare(file, "CNN_proj/b_proj", (65536,))
        declare(file, f"{LSTM}/W_0", (2 * 65536, 4 * 65536))
    assert_refused(model, "weights.hdf5", f"{LSTM}/W_0", "memory")


def test_many_datasets_that_are_one(model):
    """Each is small enough; all together would take what no file of this size can fill."""
    n = 64
    options = {**OPTIONS, "char_cnn": {**OPTIONS["char_cnn"], "embedding": {"dim": 1000}}}
    options["char_cnn"]["filters"] = [[50, 1000]] * n
    (model / "options.json").write_text(json.dumps(options))
    with h5py.File(model / "weights.hdf5", "r+") as file:
        del file["CNN"], file["char_embed"]
        declare(file, "char_embed", (261, 1000))
        declare(file, "CNN/W_cnn_0", (1, 50, 1000, 1000))  # 200 MB, less than 200 times 1 MiB
        file["CNN/b_cnn_0"] = np.zeros(1000, np.float32)
        for i in range(1, n):
            file[f"CNN/W_cnn_{i}"] = file["CNN/W_cnn_0"]
            file[f"CNN/b_cnn_{i}"] = file["CNN/b_cnn_0"]
    assert_refused(model, "weights.hdf5", "CNN/W_cnn_1", "memory")


def test_a_chunk_far_larger_than_its_dataset(model):
    def make(file):
        file.create_dataset(
            "char_embed", (261, 2), "f4", chunks=(1 << 28, 2), maxshape=(None, 2), compression=9
        )

    replace_dataset(model, "char_embed", make)
    assert_refused(model, "weights.hdf5", "char_embed", "memory")


def test_honest_compression_is_fine(model):
    expected = read_model(model).tensors
    with h5py.File(model / "weights.hdf5", "w") as file:
        for name, value in TENSORS.items():
            file.create_dataset(name, data=value, compression="gzip", shuffle=True)
    got = read_model(model).tensors
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["dim", "projection_dim", "n_layers"])
@pytest.mark.parametrize(
    "value", [-1, 0, 10**9, 10**30, 1.5, float("nan"), float("inf"), "many", [], {}, None, [[5]]]
)
def test_absurd_lstm_sizes(model, key, value):
    options = {**OPTIONS, "lstm": {**OPTIONS["lstm"], key: value}}
    (model / "options.json").write_text(json.dumps(options))
    assert_refused(model, "options.json", error=RelmoError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("filters", None),
        ("filters", []),
        ("filters", "abc"),
        ("filters", [[1, -2]]),
        ("filters", [[1, 2, 3]]),
        ("filters", [[10**9, 2]]),
        ("filters", [["a", "b"]]),
        ("filters", {"1": 2}),
        ("n_highway", -1),
        ("n_highway", 10**9),
        ("n_highway", [1]),
        ("embedding", None),
        ("embedding", 2),
        ("embedding", {}),
        ("embedding", {"dim": -2}),
        ("embedding", {"dim": {"dim": 2}}),
        ("n_characters", float("nan")),
        ("n_characters", [262]),
        ("max_characters_per_token", 0),
        ("max_characters_per_token", 10**9),
        ("max_characters_per_token", None),
        ("activation", "__class__"),
        ("activation", ["relu"]),
    ],
)
def test_absurd_character_settings(model, key, value):
    options = {**OPTIONS, "char_cnn": {**OPTIONS["char_cnn"], key: value}}
    (model / "options.json").write_text(json.dumps(options))
    assert_refused(model, "options.json", error=RelmoError)


@pytest.mark.parametrize("key", ["cell_clip", "proj_clip"])
@pytest.mark.parametrize("value", [-3, float("nan"), float("inf"), "three", [3]])
def test_absurd_clips(model, key, value):
    options = {**OPTIONS, "lstm": {**OPTIONS["lstm"], key: value}}
    (model / "options.json").write_text(json.dumps(options))
    assert_refused(model, "options.json", error=RelmoError)


@pytest.mark.parametrize("value", ["perhaps", [1], {"a": 1}, 3])
def test_absurd_switches(model, value):
    options = {**OPTIONS, "lstm": {**OPTIONS["lstm"], "use_skip_connections": value}}
    (model / "options.json").write_text(json.dumps(options))
    assert_refused(model, "options.json", error=RelmoError)


@pytest.mark.parametrize("part", ["lstm", "char_cnn"])
@pytest.mark.parametrize("value", [None, 1, "x", [], [["dim", 1]]])
def test_parts_that_are_no_objects(model, part, value):
    (model / "options.json").write_text(json.dumps({**OPTIONS, part: value}))
    assert_refused(model, "options.json", "must be JSON objects")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\xfd",
        json.dumps(OPTIONS).encode()[:-1],
        json.dumps(OPTIONS).encode() + b"}",
        b'{"lstm": ' + b"[" * 100_000 + b"]" * 100_000 + b', "char_cnn": {}}',
        b'{"lstm": ' + b'{"a": ' * 100_000,
        b'{"lstm": {"dim": ' + b"9" * 100_000 + b'}, "char_cnn": {}}',
        b'{"lstm": {}, "char_cnn": {}, "x": "' + b" " * (9 << 20) + b'"}',
    ],
    ids=range(11),
)
def test_options_that_are_no_options(model, data):
    (model / "options.json").write_bytes(data)
    assert_refused(model, "options.json")
    with pytest.raises(FormatError, match=r"options\.json"):
        read_model(options=model / "options.json", weights=model / "weights.hdf5")


# ---- pickles -------------------------------------------------------------------------------------


class Evil:
    """Unpickled by anything that runs what a pickle says, it creates a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def saved(value, **how):
    buffer = io.BytesIO()
    torch.save(value, buffer, **how)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["token_embedder.pkl", "encoder.pkl"])
@pytest.mark.parametrize("key", ["evil", "projection.weight"])
def test_pickles_with_code_in_them_are_not_run(many_langs, tmp_path, name, key):
    marker = tmp_path / "work" / "marker"
    state = torch.load(many_langs / name, weights_only=True)
    state[key] = Evil(marker)
    attacks = [
        pickle.dumps(Evil(marker)),
        pickle.dumps({key: Evil(marker)}),
        saved(Evil(marker)),
        saved(state),
        saved(state, _use_new_zipfile_serialization=False),
    ]
    pickle.loads(attacks[0])
    marker.unlink()  # without an error: the attack is a real one
    for data in attacks:
        (many_langs / name).write_bytes(data)
        assert_refused(many_langs, name, "nothing in it was run")
        assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'touch marker'\ntR.",
        b'cbuiltins\neval\n(S\'open("marker", "w")\'\ntR.',
        b"ctorch.hub\nload\n(S'somebody/something'\ntR.",
        b"ctorch.serialization\nload\n(S'other.pkl'\ntR.",
        b"(lp0\n.",
        b"",
        b".",
        b"\x80\x02.",
        b"\x80\x04\x95" + b"\xff" * 8,
        b"\x80\x02X\xff\xff\xff\xff",
        b"PK\x03\x04",
        b"hello",
        pickle.dumps({"projection.weight": [1.0]}),
        pickle.dumps([1, 2]),
        pickle.dumps(None),
        saved([torch.zeros(3)]),
        saved({"projection.weight": 3}),
        saved(torch.zeros(3)),
    ],
    ids=range(18),
)
def test_pickles_of_other_things(many_langs, data):
    for name in ("token_embedder.pkl", "encoder.pkl"):
        good = (many_langs / name).read_bytes()
        (many_langs / name).write_bytes(data)
        assert_refused(many_langs, name)
        (many_langs / name).write_bytes(good)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 12, dtype=torch.int64),
        torch.zeros(4, 12, dtype=torch.bool),
        torch.zeros(4, 12, dtype=torch.complex64),
        torch.zeros(4, 12, device="meta"),
        torch.zeros(4, 12).to_sparse(),
        torch.zeros(1).expand(4, 12),
        torch.zeros(1).expand(1 << 40, 12),
        torch.zeros(()),
        torch.zeros(0),
        torch.zeros(4, 12, 1),
    ],
    ids=range(10),
)
def test_tensors_of_other_kinds(many_langs, tensor):
    path = many_langs / "token_embedder.pkl"
    state = torch.load(path, weights_only=True)
    assert state["projection.weight"].shape == (4, 12)
    for key in ("projection.weight", "highways._layers.0.bias", "char_emb_layer.embedding.weight"):
        torch.save({**state, key: tensor}, path)
        assert_refused(many_langs)


@pytest.mark.parametrize("old", [False, True])
def test_pickles_cut_or_with_wrong_bytes(many_langs, old):
    path, rng = many_langs / "encoder.pkl", random.Random(0)
    good = saved(torch.load(path, weights_only=True), _use_new_zipfile_serialization=not old)
    for cut in range(0, len(good) - 1, len(good) // 25):
        path.write_bytes(good[:cut])
        assert_refused(many_langs, "encoder.pkl")
    for _ in range(50):
        data = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
        path.write_bytes(data)
        outcome(many_langs)


def test_a_pickle_that_unpacks_to_far_more(many_langs):
    path = many_langs / "encoder.pkl"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, bytes(10 << 20) if name.endswith("data/0") else data)
    assert path.stat().st_size < 1 << 20
    assert_refused(many_langs, "encoder.pkl", "grow")


# ---- archives ------------------------------------------------------------------------------------


def pack(tmp_path, model, extra=(), compression=zipfile.ZIP_STORED):
    """A good model in an archive, and further members (name or ZipInfo, data)."""
    (tmp_path / "zip").mkdir(exist_ok=True)
    path = tmp_path / "zip" / "model.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in sorted(model.iterdir()):
            archive.write(file, file.name)
        for name, data in extra:
            archive.writestr(name, data)
    return path


def patch_directory(path, name, offset, value):
    """Overwrite a field of a member's entry in the central directory."""
    data = bytearray(path.read_bytes())
    start = data.rfind(b"PK\x01\x02", 0, data.rfind(name.encode()))
    data[start + offset : start + offset + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.txt",
        "a/../../outside.txt",
        "..",
        "/etc/passwd",
        "//server/share/x",
        "..\\outside.txt",
        "a\\..\\..\\outside.txt",
        "\\windows\\x",
        "C:\\windows\\x",
        "C:/windows/x",
        "c:x",
    ],
)
def test_members_outside_of_the_archive(model, tmp_path, name):
    path = pack(tmp_path, model)
    read_model(path)
    assert_refused(pack(tmp_path, model, [(zipfile.ZipInfo(name), b"x")]), "outside")


def test_members_that_are_links(model, tmp_path):
    link = zipfile.ZipInfo("vocab.txt")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert_refused(pack(tmp_path, model, [(link, "/etc/passwd")]), "vocab.txt", "symbolic link")


def test_members_of_the_same_name(model, tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = pack(tmp_path, model, [("options.json", b"{}")])
    assert_refused(path, "same name")
    assert_refused(pack(tmp_path, model, [("more/options.json", b"{}")]), "same name")


def test_members_with_a_password(model, tmp_path):
    path = pack(tmp_path, model)
    patch_directory(path, "weights.hdf5", 8, b"\x01\x00")
    assert_refused(path, "weights.hdf5", "encrypted")


@pytest.mark.parametrize("size", [b"\xff\xff\xff\x7f", b"\xfe\xff\xff\xff"])
def test_members_that_declare_a_huge_size(model, tmp_path, size):
    path = pack(tmp_path, model)
    patch_directory(path, "weights.hdf5", 24, size)
    assert_refused(path, "weights.hdf5", "grow")


@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_members_that_lie_about_their_size(model, tmp_path, change):
    size = (model / "weights.hdf5").stat().st_size
    path = pack(tmp_path, model, compression=zipfile.ZIP_DEFLATED)
    patch_directory(path, "weights.hdf5", 24, struct.pack("<I", size + change))
    assert_refused(path, "weights.hdf5")


def test_a_bomb_of_zeros(model, tmp_path):
    path = pack(tmp_path, model)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("vocab.txt", "w") as member,
    ):
        for _ in range(230):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 4 << 20
    assert_refused(path, "vocab.txt", "grow")


def test_too_many_members(model, tmp_path):
    path = pack(tmp_path, model, ((f"{i}", b"") for i in range(10_000)))
    assert_refused(path, "10002 members")


def test_wrong_checksums(model, tmp_path):
    path = pack(tmp_path, model)
    data = path.read_bytes()
    place = data.index(TENSORS["char_embed"].tobytes()[:64])
    path.write_bytes(data[:place] + b"\0\0\0\0" + data[place + 4 :])
    assert_refused(path, "weights.hdf5", "damaged", "CRC")


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_archives_cut_or_with_wrong_bytes(model, tmp_path, compression):
    path = pack(tmp_path, model, compression=compression)
    good, rng = path.read_bytes(), random.Random(0)
    for cut in range(0, len(good) - 1, len(good) // 20):
        path.write_bytes(good[:cut])
        assert_refused(path)
    for i in range(40):
        data = bytearray(good)
        first = 0 if i % 2 else len(good) - 200  # anywhere, or in the directory
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(first, len(data))] = rng.randrange(256)
        path.write_bytes(data)
        outcome(path)


def test_names_that_are_not_what_they_say_they_are(model, tmp_path):
    path = pack(tmp_path, model, [("日本.txt", b"x")])  # marked as UTF-8
    name = "日本.txt".encode()
    path.write_bytes(path.read_bytes().replace(name, b"\xff" * len(name)))
    assert_refused(path, "not a readable zip archive")


def test_unknown_compression(model, tmp_path):
    path = pack(tmp_path, model)
    patch_directory(path, "weights.hdf5", 10, b"\x63\x00")
    assert_refused(path, "weights.hdf5", "damaged")


# ---- safetensors ---------------------------------------------------------------------------------


@pytest.fixture
def ours(tmp_path, model):
    native.write(read_model(model), tmp_path / "outside")
    return tmp_path / "outside"


def read_header(data):
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def write_header(path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", [1 << 40, 1 << 40]),
        ("shape", [-1, 4]),
        ("shape", [1.5]),
        ("shape", "x"),
        ("shape", []),
        ("data_offsets", [0, 1 << 40]),
        ("data_offsets", [1 << 62, 1 << 63]),
        ("data_offsets", [64, 0]),
        ("data_offsets", [0, 0]),
        ("data_offsets", None),
        ("dtype", "F64"),
        ("dtype", "I32"),
        ("dtype", "F8_E8M0"),
        ("dtype", "pickle"),
        ("dtype", None),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_headers_that_lie(ours, tmp_path, key, value, zipped):
    path = ours / "model.safetensors"
    header, body = read_header(path.read_bytes())
    header["encoder.characters.weight"][key] = value
    write_header(path, header, body)
    source = pack(tmp_path, ours) if zipped else ours
    assert_refused(source, "encoder.characters.weight" if value == "I32" else "model.safetensors")


@pytest.mark.parametrize("zipped", [False, True])
def test_kinds_of_numbers_that_only_some_programs_know(ours, tmp_path, zipped):
    path = ours / "model.safetensors"
    header, body = read_header(path.read_bytes())
    header["more"] = {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [len(body), len(body) + 4]}
    write_header(path, header, body + bytes(4))
    assert_refused(pack(tmp_path, ours) if zipped else ours)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b"\xff" * 9,
        b"[" * 99_999,
        b'{"a": ' * 99_999,
        b'{"__metadata__":1}',
    ],
    ids=range(8),
)
def test_headers_that_are_none(ours, header):
    path = ours / "model.safetensors"
    _, body = read_header(path.read_bytes())
    write_header(path, header, body)
    assert_refused(ours, "model.safetensors")


@pytest.mark.parametrize("n", [0, 1, 1 << 31, 1 << 40, (1 << 64) - 1])
def test_headers_of_the_wrong_length(ours, n):
    path = ours / "model.safetensors"
    path.write_bytes(struct.pack("<Q", n) + path.read_bytes()[8:])
    assert_refused(ours, "model.safetensors")


def test_safetensors_with_wrong_bytes(ours):
    path, rng = ours / "model.safetensors", random.Random(0)
    good = path.read_bytes()
    n_refused = 0
    for _ in range(100):
        data = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(1500)] = rng.randrange(256)
        path.write_bytes(data)
        n_refused += outcome(ours) is None
    assert n_refused > 20
