"""Embedding text of any length: reading, arithmetic and writing run side by side.

Everything that waits does so in queues of bounded length, and order is kept.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, ParamSpec

import torch
import torch.multiprocessing

from relmo.arrays import Array
from relmo.errors import ConfigError
from relmo.formats import ModelContents
from relmo.inference.layer_selection import LayerSpec
from relmo.inference.model import Model
from relmo.inference.model_source import ModelLike, open_model
from relmo.prefetch import prefetch
from relmo.progress import progress
from relmo.text.batch import cut_into_pools
from relmo.text.processes import worker_died
from relmo.text.reading import LINES, TextOptions, TextReader, TextSource
from relmo.vectors.sinks import check_sink, open_sink

P = ParamSpec("P")
Line = tuple[str, list[str]]  # a line and its tokens

QUEUED_POOLS = 2  # read and ready to be embedded
QUEUED_SENTENCES = 256  # embedded and ready to be written


@dataclass(frozen=True)
class EmbeddedFile:
    """A file of vectors that was written.

    Attributes:
        path: the file, or "-" for standard output.
        sentences: number of sentences, empty ones included.
        tokens: number of tokens.
    """

    path: str
    sentences: int
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return asdict(self)


def embed_file(
    text: TextSource,
    output: str | Path,
    model: ModelLike = "en",
    *,
    layers: LayerSpec = "average",
    dtype: str = "float32",
    workers: int = 1,
    text_options: TextOptions = LINES,
) -> EmbeddedFile:
    r"""Embed a text of any length into a file: one vector per token and layer.

    Args:
        text: a file, a directory or "-" for standard input, or a list of them.
        output: the file to write; its extension chooses the format: .hdf5, .h5, .safetensors,
            .npz, .parquet or .jsonl. "-" writes JSON lines to standard output.
        model: a name, a path or a loaded model.
        layers: as for `Model.embed`.
        dtype: type of the numbers in the file, "float32" or "float16".
        workers: number of processes.
        text_options: how to read the text; by default one sentence per line, where a blank line
            is a sentence without tokens.

    Example:
        >>> import relmo
        >>> from pathlib import Path
        >>> _ = Path("text.txt").write_text("The cat sat .\nIt slept .\n")
        >>> relmo.embed_file("text.txt", "vectors.npz", "en", layers="top")
        EmbeddedFile(path='vectors.npz', sentences=2, tokens=7)
    """
    check_sink(output, dtype)
    if workers < 1:
        raise ConfigError(f"workers is {workers}; expected 1 or more.", settings=["workers"])
    reader = TextReader(text, text_options, blank_lines=True)
    embedded = _embed(reader, open_model(model), layers, workers)
    n_sentences = n_tokens = 0
    with (
        open_sink(output, dtype=dtype) as sink,
        written_behind(sink.write, n=QUEUED_SENTENCES) as write,
        progress("Embedding", unit="words") as advance,
    ):
        for (sentence, tokens, vectors), share in embedded:
            write(sentence, tokens, vectors)
            n_sentences, n_tokens = n_sentences + 1, n_tokens + len(tokens)
            advance(len(tokens), share)
    return EmbeddedFile(str(output), n_sentences, n_tokens)


def _embed(
    reader: TextReader, model: Model, layers: LayerSpec, workers: int
) -> Iterator[tuple[tuple[str, list[str], Array], float | None]]:
    """Yield what `embed_lines` does, each with the share of the text that had been read there."""
    shares: deque[float | None] = deque()  # of the sentences that are being embedded

    def sentences() -> Iterator[str]:
        for sentence, share in reader.with_shares():
            shares.append(share)
            yield sentence

    for embedded in embed_lines(model, sentences(), layers=layers, workers=workers):
        yield embedded, shares.popleft()


def embed_lines(
    model: Model, lines: Iterable[str], *, layers: LayerSpec = "average", workers: int = 1
) -> Iterator[tuple[str, list[str], Array]]:
    """Each line, its tokens and their vectors, in order.

    Args:
        model: the model.
        lines: one sentence each, any number of them; prefetched in another thread.
        layers: as for `Model.embed`.
        workers: processes to share the work, with the weights in memory once; 1 is this process.
    """
    tokenised = ((line, [t.text for t in model.tokenize(line)]) for line in lines)
    most = model.pool_tokens(layers)
    pools = prefetch(cut_into_pools(tokenised, lambda line: len(line[1]), most), QUEUED_POOLS)
    results: Iterator[tuple[list[Line], list[Array]]]
    if workers == 1:
        results = ((pool, model.embed(_tokens(pool), layers=layers)) for pool in pools)
    else:
        results = _embed_in_processes(model, pools, layers, workers)
    for pool, vectors in results:
        for (line, tokens), array in zip(pool, vectors, strict=True):
            yield line, tokens, array


def _tokens(pool: list[Line]) -> list[list[str]]:
    return [tokens for _, tokens in pool]


@contextmanager
def written_behind(write: Callable[P, None], n: int) -> Iterator[Callable[P, None]]:
    """Give a function that calls `write` in another thread, at most n calls behind.

    What `write` raises is raised by a later call, or when the block ends.
    """
    waiting: deque[Future[None]] = deque()
    writer = ThreadPoolExecutor(1, thread_name_prefix="relmo-writer")

    def put(*arguments: P.args, **named: P.kwargs) -> None:
        waiting.append(writer.submit(write, *arguments, **named))
        while len(waiting) > n:
            waiting.popleft().result()

    try:
        yield put
        for future in waiting:
            future.result()
    finally:
        writer.shutdown(wait=True, cancel_futures=True)


def _embed_in_processes(
    model: Model, pools: Iterable[list[Line]], layers: LayerSpec, workers: int
) -> Iterator[tuple[list[Line], list[Array]]]:
    if next(model.bilm.parameters()).device.type != "cpu":
        raise ConfigError(
            "Several processes embed on the CPU only: load the model there, or use 1."
        )
    context = torch.multiprocessing.get_context("spawn")
    # A worker gets its model from a queue: as an argument it would fill a pipe that nobody reads,
    # and wait for ever, where the worker dies at its start.
    models: Queue[ModelContents] = context.Queue()
    models.cancel_join_thread()
    contents = model.contents()
    for _ in range(workers):
        models.put(contents)
    n_threads = max(1, torch.get_num_threads() // workers)
    executor = ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=_start_worker,
        initargs=(models, model.precision, n_threads),
    )
    waiting: deque[tuple[list[Line], Future[list[Array]]]] = deque()
    stream = iter(pools)
    try:
        for pool in islice(stream, workers + QUEUED_POOLS):
            waiting.append((pool, executor.submit(_work, _tokens(pool), layers)))
        while waiting:
            pool, future = waiting.popleft()
            vectors = future.result()
            for following in islice(stream, 1):
                waiting.append((following, executor.submit(_work, _tokens(following), layers)))
            yield pool, vectors
    except BrokenProcessPool as error:
        raise worker_died(error, "use fewer workers") from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        models.close()


_worker: Model  # in a worker process: its model


def _start_worker(models: Queue[ModelContents], precision: str, n_threads: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    torch.set_num_threads(n_threads)
    _worker = Model(models.get(), precision=precision)


def _work(sentences: list[list[str]], layers: LayerSpec) -> list[Array]:
    return _worker.embed(sentences, layers=layers)
