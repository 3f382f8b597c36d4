"""A corpus prepared into shards: what they hold, when they are made again, what can go wrong."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from relmo.errors import ConfigError, DataError, FormatError
from relmo.text import shard_tables, shards
from relmo.text.shards import Corpus, prepare_corpus


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Three files, one of them empty."""
    monkeypatch.chdir(tmp_path)
    contents = {"a.txt": "b a\n\na a c\n", "b.txt": "", "c.txt": "文 a"}
    for name, content in contents.items():
        Path(name).write_text(content, encoding="utf-8")
    return list(contents)


def prepare(texts, **changes):
    options = {"tokenizer": "whitespace", "lines": True, "language": "en", "cache": Path("cache")}
    return prepare_corpus(texts, **options | {"workers": 1} | changes)


def sentences(corpus):
    return [shard.sentence(i) for shard in corpus.shards for i in range(shard.n_sentences)]


def count_tokenised(monkeypatch):
    """A list that grows by each sentence that is tokenised."""
    tokenised = []
    build = shards.build_tokenizer

    def counting(name):
        tokenize = build(name)
        return lambda text: tokenised.append(text) or tokenize(text)

    monkeypatch.setattr(shards, "build_tokenizer", counting)
    return tokenised


# ---- what they hold -----------------------------------------------------------------------------


def test_sentences_words_and_counts(texts):
    corpus = prepare(texts)
    assert sentences(corpus) == [["b", "a"], ["a", "a", "c"], ["文", "a"]]
    (shard,) = corpus.shards  # small files share one
    assert list(shard.words) == ["a", "b", "c", "文"]
    assert [shard.words[i] for i in range(-1, 4)] == ["文", "a", "b", "c", "文"]
    with pytest.raises(IndexError):
        shard.words[4]
    assert shard.counts.tolist() == [4, 1, 1, 1]
    assert shard.ids.tolist() == [1, 0, 0, 0, 2, 3, 0]
    assert shard.ids.dtype == np.int32
    assert shard.ends.tolist() == [2, 5, 7]
    assert shard.lengths.tolist() == [2, 3, 2]
    assert (corpus.n_sentences, corpus.n_tokens) == (3, 7)
    assert corpus.count_words() == {"a": 4, "b": 1, "c": 1, "文": 1}


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=5
).filter(lambda word: word not in ("<S>", "</S>"))  # these are left out: see below


@settings(max_examples=40)
@given(expected=st.lists(st.lists(WORDS, min_size=1, max_size=8), min_size=1, max_size=20))
def test_any_sentences_in_any_number_of_shards(tmp_path_factory, expected):
    folder = tmp_path_factory.mktemp("shards")
    text = folder / "text.txt"
    text.write_text("\n".join(map(" ".join, expected)), encoding="utf-8", newline="\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_tables, "_MAX_TOKENS", 10)
        corpus = prepare([str(text)], cache=folder)
        again = prepare([str(text)], cache=folder)
    assert sentences(corpus) == sentences(again) == expected
    assert corpus.key == again.key
    assert all(shard.n_tokens < 18 for shard in corpus.shards)
    assert corpus.count_words() == Counter(word for words in expected for word in words)
    assert sentences(Corpus.open(sorted(folder.glob("*.safetensors"), key=number))) == expected


def number(path):
    return int(path.stem.rpartition("-")[2])


def test_boundaries_in_the_text_are_left_out(texts):
    Path("a.txt").write_text("<S> x </S>\n<S> </S>\n<UNK> <s> y\n", encoding="utf-8")
    assert sentences(prepare(["a.txt"])) == [["x"], ["<UNK>", "<s>", "y"]]


def test_prose(texts):
    pytest.importorskip("sentencex", reason="prose needs relmo[sentences]")
    Path("a.txt").write_text("Mr. A is\nhere. Who?\n", encoding="utf-8")
    found = sentences(prepare(["a.txt"], lines=False, tokenizer="words"))
    assert found == [["Mr.", "A", "is", "here", "."], ["Who", "?"]]


def test_the_order_of_the_text_is_kept(texts):
    assert sentences(prepare(["c.txt", "a.txt"]))[0] == ["文", "a"]
    assert prepare(["c.txt", "a.txt"]).key != prepare(["a.txt", "c.txt"]).key
    assert len(sentences(prepare(["a.txt", "a.txt"]))) == 4


def test_standard_input_and_pipes(texts, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    os.mkfifo("fifo")
    with subprocess.Popen(["sh", "-c", "echo and another > fifo"]):
        corpus = prepare(["-", "fifo"])
    assert sentences(corpus) == [["from", "a", "pipe"], ["and", "another"]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    with pytest.raises(DataError, match=r"standard input, line 1: found the byte 0xe9"):
        prepare(["-"])
    assert all(path.suffix == ".safetensors" for path in Path("cache").iterdir())


def test_no_room_for_a_copy(texts, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text\n")))
    with pytest.raises(DataError, match="Cannot copy - to cache: No space left"):
        prepare(["-"])
    assert not list(Path("cache").iterdir())


@pytest.mark.parametrize("content", ["", "\n \n", "<S> </S>\n"])
def test_no_sentence_at_all(texts, content):
    Path("b.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="no sentence"):
        prepare(["b.txt"])


def test_nothing_at_all(texts):
    with pytest.raises(DataError, match="no sentence"):
        prepare([])


def test_new_results_need_a_new_format(texts):
    """When this fails, old caches are wrong: raise the number in FORMAT, then mend the test."""
    text = "Mr. O'Neill doesn't like the U.S.-led talks (1,234.5 %)! 我们..."
    tokens = "Mr. O'Neill does n't like the U.S.-led talks ( 1,234.5 % ) ! 我 们 ..."
    Path("a.txt").write_text(text, encoding="utf-8")
    assert sentences(prepare(["a.txt"], tokenizer="words")) == [tokens.split()]
    assert shard_tables.FORMAT == "relmo shard 1"


# ---- made once ----------------------------------------------------------------------------------


def test_tokenised_once(texts, monkeypatch):
    tokenised = count_tokenised(monkeypatch)
    first = prepare(texts)
    assert len(tokenised) == 3
    tokenised.clear()
    Path("a.txt").rename("moved.txt")
    second = prepare(["moved.txt", *texts[1:]])
    assert tokenised == []
    assert first.key == second.key


@pytest.mark.parametrize(
    "change",
    [{"tokenizer": "words"}, {"encoding": "utf-8-sig"}, {"errors": "replace"}, {"lines": False}],
)
def test_all_that_the_result_depends_on_is_in_the_key(texts, change):
    pytest.importorskip("sentencex", reason="prose needs relmo[sentences]")
    assert prepare(texts).key != prepare(texts, **change).key
    assert prepare(texts).key == prepare(texts, language="de").key  # lines have no language
    german = prepare(texts, lines=False, language="de")
    assert german.key != prepare(texts, lines=False).key


def test_where_a_file_ends_is_in_the_key(texts):
    Path("x.txt").write_text("b a\n\na ", encoding="utf-8")
    Path("y.txt").write_text("a c\n", encoding="utf-8")
    assert prepare(["x.txt", "y.txt"]).key != prepare(["a.txt"]).key


def damage(name, value):
    def change(path):
        tables = safetensors.numpy.load_file(path)
        tables[name] = np.asarray(value, dtype=tables[name].dtype)
        metadata = {"format": shard_tables.FORMAT + ", last"}
        safetensors.numpy.save_file(tables, path, metadata)

    return change


DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"12345678"),
    "something else": lambda path: path.write_bytes(b"some text\n" * 9),
    "another format": lambda path: safetensors.numpy.save_file(
        safetensors.numpy.load_file(path), path
    ),
    "id too high": damage("ids", [1, 0, 0, 0, 2, 4, 0]),
    "id below zero": damage("ids", [1, 0, 0, 0, 2, -1, 0]),
    "other ids": damage("ids", [1, 0, 1, 0, 2, 3, 0]),
    "end too far": damage("ends", [2, 5, 8]),
    "ends fall": damage("ends", [5, 2, 7]),
    "an empty sentence": damage("ends", [2, 2, 7]),
    "a word too few": damage("counts", [5, 1, 1]),
    "within a character": damage("word_ends", [1, 2, 4, 6]),
    "not UTF-8": damage("words", [97, 98, 99, 255, 255, 255]),
    "a newline": damage("words", [97, 98, 10, 230, 150, 135]),
    "two dimensions": damage("ends", [[2, 5, 7]]),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_noticed_and_mended(texts, monkeypatch, kind):
    expected = sentences(prepare(texts))
    (path,) = Path("cache").glob("*.safetensors")
    whole = path.read_bytes()
    DAMAGES[kind](path)
    with pytest.raises(FormatError, match=rf"{path.name}.* Prepare it again"):
        Corpus.open([path])
    tokenised = count_tokenised(monkeypatch)
    assert sentences(prepare(texts)) == expected
    assert len(tokenised) == 3
    assert path.read_bytes() == whole


def test_a_missing_last_shard_is_noticed(texts, monkeypatch):
    monkeypatch.setattr(shard_tables, "_MAX_TOKENS", 2)
    corpus = prepare(texts)
    assert len(corpus.shards) == 3
    last = Path("cache") / f"{corpus.shards[-1].key}.safetensors"
    last.unlink()
    assert sentences(prepare(texts)) == sentences(corpus)
    assert last.is_file()


def test_an_interruption_keeps_what_is_finished(texts, monkeypatch):
    monkeypatch.setattr(shards, "_UNIT_BYTES", 1)  # a file a unit
    Path("b.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError, match=r"b\.txt, line 2: found the byte 0xff"):
        prepare(texts)
    assert len(list(Path("cache").iterdir())) == 1  # of a.txt, and nothing else
    Path("b.txt").write_bytes(b"mended\n")
    tokenised = count_tokenised(monkeypatch)
    assert len(sentences(prepare(texts))) == 4
    assert set(tokenised) == {"mended", "文 a"}


# ---- what can go wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "none"}, "no tokenizer 'none'"),
        ({"lines": False, "language": "English"}, "Unknown language"),
        ({"encoding": "nonsense"}, "Unknown encoding"),
        ({"workers": 0}, "workers is 0"),
    ],
)
def test_settings_that_do_not_make_sense(texts, change, message):
    with pytest.raises(ConfigError, match=message):
        prepare(texts, **change)


def test_files_that_cannot_be_used(texts):
    with pytest.raises(DataError, match=r"missing\.txt: No such file"):
        prepare(["missing.txt"])
    with pytest.raises(DataError, match=r"a\.txt.*: (Not a directory|File exists)"):
        prepare(texts, cache=Path("a.txt/cache"))
    with pytest.raises(FormatError, match="Prepare it again"):
        Corpus.open([Path("nowhere.safetensors")])


# ---- processes ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_give_the_same(texts, monkeypatch):
    monkeypatch.setattr(shards, "_UNIT_BYTES", 1)
    alone, shared = prepare(texts, cache=Path("one")), prepare(texts, cache=Path("two"), workers=2)
    assert sentences(alone) == sentences(shared)
    assert alone.key == shared.key
    Path("b.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"b\.txt, line 1: found the byte 0xff"):
        prepare(texts, workers=2)


PROGRAM = """
import sys
from pathlib import Path
from relmo.errors import RelmoError
from relmo.text.shards import prepare_corpus
if __name__ == "__main__":
    try:
        prepare_corpus(sys.argv[1:], tokenizer="words", lines=True, language="en",
                       cache=Path("cache"), workers=2)
    except (RelmoError, KeyboardInterrupt) as error:
        sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def long_run(tmp_path):
    """A program that prepares two files for a minute, and its two workers."""
    (tmp_path / "program.py").write_text(PROGRAM)
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text("some words that are to be told apart\n" * 1_500_000)
    command = [sys.executable, "program.py", "x.txt", "y.txt"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while len(workers := children(process.pid)) < 2 or not all(map(is_busy, workers)):
            assert time.monotonic() < deadline, "the workers never started to read"
            time.sleep(0.1)
        yield process, workers
        process.kill()


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [c for c in found if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]


def is_busy(pid):
    return any(
        os.path.realpath(link).endswith((".txt",)) for link in Path(f"/proc/{pid}/fd").iterdir()
    )


def ends(pid, seconds=10):
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")


@pytest.mark.slow
@needs_proc
def test_ctrl_c_ends_everything(long_run):
    process, workers = long_run
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=10)
    assert message.decode().strip() == "KeyboardInterrupt:"
    assert all(map(ends, workers))
    assert not list(Path(process.args[1]).parent.glob("cache/*"))


@pytest.mark.slow
@needs_proc
def test_a_worker_that_dies_ends_everything(long_run):
    process, workers = long_run
    os.kill(int(workers[0]), signal.SIGKILL)
    _, message = process.communicate(timeout=10)
    assert message.startswith(b"DataError: A worker process has died")
    assert b"If memory ran out" in message
    assert all(map(ends, workers))


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("A word.\n" * 200_000)  # a unit of work each
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from relmo.text.shards import prepare_corpus\n"
        "prepare_corpus(['a.txt', 'b.txt'], tokenizer='words', lines=True, language='en',"
        " cache=Path('cache'), workers=2)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    advice = 'call relmo under `if __name__ == "__main__":`, as every worker imports the script.\n'
    assert advice in done.stderr
    # Python ends the other worker wherever it is: its resource tracker may then tell of semaphores
    # that were left, once everybody has gone. Nothing else may come behind the advice.
    behind = done.stderr.partition(advice)[2].splitlines()
    assert all("resource_tracker" in line or "warnings.warn(" in line for line in behind), behind


@pytest.mark.slow
@needs_proc
def test_workers_do_not_outlive_their_parent(long_run):
    process, workers = long_run
    process.kill()
    assert all(map(ends, workers))


@pytest.mark.slow
def test_workers_need_no_torch():
    program = "import relmo.text.shards, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
