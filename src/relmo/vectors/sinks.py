"""Write vectors to files, sentence by sentence; the file extension chooses the format.

All formats are streamed. What grows with the number of sentences: `sentence_to_index` of HDF5, one
string (on disk until the end); the header of safetensors (at most 100 MB); 350 bytes per sentence
for npz.
"""

import json
import shutil
import sys
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np

from relmo.errors import ConfigError, DataError
from relmo.files import check_writable, written_atomically

FloatArray: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]  # float32 or float16
_DTYPES = {"float32": "<f4", "float16": "<f2"}
_HEADER_LIMIT = 100_000_000  # bytes; safetensors refuses to read more
_ROW_GROUP = 1 << 25  # bytes of vectors per row group of parquet
_POWERS = np.array([10.0**n for n in range(23)])  # exact in float64


def check_sink(path: str | Path, dtype: str = "float32") -> None:
    """Raise the errors that `open_sink` would raise for these, before any work is done."""
    if dtype not in _DTYPES:
        raise ConfigError(
            f"Unknown dtype {dtype!r}: expected {' or '.join(_DTYPES)}.", settings=["dtype"]
        )
    suffix = Path(path).suffix.lower()
    if str(path) == "-":
        return
    if suffix not in SINKS:
        raise ConfigError(f"{path} must end in one of {', '.join(SINKS)}, or be - for JSON lines.")
    check_writable(Path(path))
    if suffix == ".parquet":
        _import_pyarrow()


@contextmanager
def open_sink(path: str | Path, *, dtype: str = "float32") -> Iterator["Sink"]:
    """Open a vector file, or standard output for "-"; the file appears when the block succeeds."""
    check_sink(path, dtype)
    with ExitStack() as stack:
        if str(path) == "-":
            layout, directory = _jsonl, None
            sys.stdout.flush()
            # Unbuffered: after an error, the buffer would try to write again at exit.
            raw = getattr(sys.stdout.buffer, "raw", None) or sys.stdout.buffer
        else:
            partial = stack.enter_context(written_atomically(Path(path)))
            layout, directory = SINKS[Path(path).suffix.lower()], partial.parent
            raw = stack.enter_context(partial.open("r+b", buffering=0))
        output = _Output(raw, directory)
        stack.callback(output.check)
        sentences = stack.enter_context(closing(layout(output)))
        next(sentences)
        yield Sink(sentences, output, dtype)
        with suppress(StopIteration):
            sentences.send(None)


class _Sentence(NamedTuple):
    number: int
    text: str
    tokens: Sequence[str]
    vectors: FloatArray  # (n_tokens, dim) or (n_layers, n_tokens, dim)


# A layout is sent the sentences, then None, and writes them to the output that it was called with.
SentenceWriter: TypeAlias = Generator[None, _Sentence | None, None]


class Sink:
    """Writes sentences in order; the first is number 0."""

    def __init__(self, sentences: SentenceWriter, output: "_Output", dtype: str) -> None:
        self._sentences, self._output, self._dtype, self._number = sentences, output, dtype, 0

    def write(self, text: str, tokens: Sequence[str], vectors: FloatArray) -> None:
        """Write a sentence; `vectors` is (n_tokens, dim) or (n_layers, n_tokens, dim)."""
        if vectors.ndim not in (2, 3) or vectors.shape[-2] != len(tokens):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(tokens)} tokens")
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(vectors, _DTYPES[self._dtype])
        if not np.isfinite(array).all():
            found = f"Sentence {self._number} has a value that is not a finite {self._dtype}"
            raise DataError(f"{found}. Write float32; if that fails too, the model is damaged.")
        self._sentences.send(_Sentence(self._number, text, tokens, array))
        self._output.check()
        self._number += 1


# Errors raised inside h5py, zipfile or pyarrow are raised again when these close, also at exit.
class _Output:
    """A file that keeps its first error for `check`, and ignores writes after it."""

    def __init__(self, raw: Any, directory: Path | None) -> None:
        self._raw, self.directory = raw, directory
        self._failure: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def check(self) -> None:
        if type(self._failure) is OSError and not self.directory:  # a broken pipe stays itself
            raise DataError(f"Cannot write to standard output: {self._failure.strerror}.")
        if self._failure:
            raise self._failure

    def truncate(self, size: int) -> None:
        try:
            self._raw.truncate(size)
        except OSError as error:
            self._failure = self._failure or error

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        try:
            while rest and not self._failure:  # a call may write only a part
                rest = rest[self._raw.write(rest) :]
        except BaseException as error:  # Ctrl-C too, which h5py would turn into a RuntimeError
            self._failure = error
        return len(memoryview(data))


def _hdf5(output: Any) -> SentenceWriter:
    """The layout of the `allennlp elmo` command: one dataset per sentence, `sentence_to_index`."""
    with TemporaryFile(dir=output.directory) as spool, h5py.File(output, "w") as file:
        while sentence := (yield):
            file.create_dataset(str(sentence.number), data=sentence.vectors)
            spool.write(json.dumps(sentence.text).encode() + b"\n")
        spool.seek(0)
        index = json.dumps({json.loads(line): str(n) for n, line in enumerate(spool)})
        file.create_dataset("sentence_to_index", data=[index], dtype=h5py.string_dtype())


def _safetensors(output: Any) -> SentenceWriter:
    """Tensors named by number; the metadata holds `sentences`, a JSON list."""
    texts, entries, n_header, end = [], [], 100, 0
    with TemporaryFile(dir=output.directory) as spool:  # the header comes first, but is known last
        while sentence := (yield):
            begin, end = end, end + spool.write(sentence.vectors.tobytes())
            kind = f'"dtype":"F{8 * sentence.vectors.itemsize}","shape":{[*sentence.vectors.shape]}'
            entries.append(f',"{sentence.number}":{{{kind},"data_offsets":[{begin},{end}]}}')
            texts.append(json.dumps(json.dumps(sentence.text))[1:-1])  # JSON inside a JSON string
            n_header += len(entries[-1]) + len(texts[-1]) + 1
            if n_header > _HEADER_LIMIT:
                raise DataError("The header of .safetensors is full. Write .hdf5 or .parquet.")
        header = f'{{"__metadata__":{{"sentences":"[{",".join(texts)}]"}}{"".join(entries)}}}'
        header += " " * (-len(header) % 8)  # the tensors begin at a multiple of 8
        output.write(len(header).to_bytes(8, "little") + header.encode("ascii"))
        spool.seek(0)
        shutil.copyfileobj(spool, output, 1 << 20)


def _npz(output: Any) -> SentenceWriter:
    with zipfile.ZipFile(output, "w") as archive:
        while sentence := (yield):
            name = zipfile.ZipInfo(f"{sentence.number}.npy")  # no date: same vectors, same bytes
            with archive.open(name, "w", force_zip64=sentence.vectors.nbytes >= 1 << 30) as member:
                np.lib.format.write_array(member, sentence.vectors, allow_pickle=False)


def _parquet(output: Any) -> SentenceWriter:
    """One row per token; the vectors of several layers are concatenated."""
    sentence = yield
    schema = _token_rows([sentence] if sentence else []).schema
    group, n_bytes = [], 0
    open_writer = _import_pyarrow().parquet.ParquetWriter
    with open_writer(output, schema, use_dictionary=["token"]) as writer:
        while sentence:
            group.append(sentence)
            n_bytes += sentence.vectors.nbytes + 1024  # empty sentences take memory too
            if n_bytes >= _ROW_GROUP:
                writer.write_table(_token_rows(group))
                group, n_bytes = [], 0
            sentence = yield
        if group:
            writer.write_table(_token_rows(group))


def _token_rows(group: list[_Sentence]) -> Any:
    arrow = _import_pyarrow()
    lengths = [len(s.tokens) for s in group]
    arrays = [s.vectors if s.vectors.ndim == 3 else s.vectors[None] for s in group]
    n_layers, _, dim = arrays[0].shape if arrays else (1, 0, 0)
    flat = np.concatenate([a.swapaxes(0, 1).ravel() for a in arrays] or [np.zeros(0, "<f4")])
    columns = {
        "sentence": np.repeat(np.array([s.number for s in group], np.int64), lengths),
        "position": np.concatenate([np.arange(0), *map(np.arange, lengths)]).astype(np.int32),
        "token": arrow.array([token for s in group for token in s.tokens], arrow.string()),
        "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(flat), n_layers * dim or 1),
    }
    return arrow.table(columns, metadata={"n_layers": str(n_layers), "dim": str(dim)})


def _jsonl(output: Any) -> SentenceWriter:
    while sentence := (yield):
        fields = {"sentence": sentence.number, "tokens": list(sentence.tokens)}
        head = json.dumps(fields, ensure_ascii=False)[:-1]
        line = f'{head}, "vectors": {_json_numbers(sentence.vectors)}}}\n'
        output.write(line.encode("utf-8", "backslashreplace"))  # lone surrogates as in JSON


def _json_numbers(array: FloatArray) -> str:
    """Nested lists of the shortest decimals that read back as the same numbers."""
    exact = short = array.astype(np.float64)
    exponent = np.floor(np.log10(np.abs(exact) + 1e-99))
    for n_digits in range(9, np.finfo(array.dtype).precision - 1, -1):
        power = _POWERS[np.clip(n_digits - 1 - exponent, 0, 22).astype(int)]
        rounded = np.rint(exact * power) / power
        short = np.where(rounded.astype(array.dtype) == array, rounded, short)
    pattern = "%.9g"  # no trailing zeros; nine digits are enough for any float32
    for size in reversed(array.shape):
        pattern = f"[{','.join([pattern] * size)}]"
    text = pattern % tuple(short.ravel().tolist())
    return text.replace("-0,", "-0.0,").replace("-0]", "-0.0]")  # a bare -0 is read as integer 0


def _import_pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Writing .parquet needs pyarrow: pip install 'relmo[parquet]'") from None
    return pyarrow


SINKS = {
    ".hdf5": _hdf5,
    ".h5": _hdf5,
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
}
