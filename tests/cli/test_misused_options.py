"""Options and values that would do nothing, or something else than they say, are refused."""

import json

import pytest

from relmo.formats import native


@pytest.fixture
def folder(tiny_contents, tmp_path):
    native.write(tiny_contents, tmp_path / "model")
    (tmp_path / "text.txt").write_text("the cat saw a bird\nthe cats ran\na bird ran\n")
    return tmp_path


@pytest.fixture
def refused(run, folder):
    def refused(*arguments):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err

    return refused


@pytest.mark.parametrize(
    "arguments",
    [
        ("senses", "cat", "--corpus", "text.txt", "-m", "model", "--prose", "en"),
        ("perplexity", "text.txt", "--prose", "en", "-m", "model"),
        ("embed", "text.txt", "--prose", "en", "-o", "o.npz", "-m", "model"),
        ("index", "build", "--prose", "en", "text.txt", "-o", "i", "-m", "model"),
        ("pretrain", "text.txt", "--prose", "en", "-o", "run"),
    ],
)
def test_a_language_after_prose(refused, folder, arguments):
    said = refused(*arguments)
    assert "--prose takes no value, but 'en' follows it" in said
    assert "write --prose --language en" in said


def test_what_may_follow_prose(run, folder):
    (folder / "de").write_text("A cat sat. It ran.")
    assert run("embed", "--prose", "de", "-o", "o.npz", "-m", "model")[0] == 0  # a file
    assert run("embed", "-o", "o.npz", "-m", "model", "--prose", "text.txt")[0] == 0


WORD = "do not depend on a text"
INDEX = "An index has its text and its layers"


@pytest.mark.parametrize(
    ("word", "where", "flags", "said"),
    [
        ("cat", (), ("--layers", "9"), f"{WORD}, so --layers would do nothing"),
        ("cat", (), ("--layers", "average"), "--layers"),
        ("cat", (), ("--prose",), "--lines/--prose would"),
        ("cat", (), ("--encoding", "latin-1", "--errors", "replace"), "--encoding and --errors"),
        ("a [cat]", ("--index", "index"), ("--layers", "top"), f"{INDEX}, so --layers would"),
        ("a [cat]", ("--index", "index"), ("--layer", "top"), "--layer would do nothing"),
        ("a [cat]", ("--index", "index"), ("--language", "de"), "--language would do nothing"),
        ("a [cat]", ("--index", "index", "--corpus", "text.txt"), (), "leave one of them out"),
    ],
)
def test_options_of_neighbours_without_effect(refused, word, where, flags, said):
    assert said in refused("neighbours", word, "-m", "model", *where, *flags)


def test_neighbours_of_several_words(refused):
    said = refused("neighbours", "two words")
    assert "Expected one word, found 'two words'" in said
    assert said.endswith(" Options: --corpus, --index.\n")


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
@pytest.mark.parametrize(
    "verb",
    [
        ("senses", "cat", "--corpus", "text.txt"),
        ("probe", "pos", "--train", "a", "--dev", "b", "--test", "c"),
        ("demo",),
        ("pretrain", "text.txt", "-o", "run"),
    ],
)
def test_seeds_out_of_range(refused, verb, seed):
    said = refused(*verb, "--seed", seed)
    assert "Invalid value for '--seed'" in said


@pytest.mark.parametrize(
    "verb",
    [
        ("embed", "text.txt", "-o", "o.npz"),
        ("perplexity", "text.txt"),
        ("score", "text.txt"),
        ("index", "build", "text.txt", "-o", "i", "--lines"),
        ("pretrain", "text.txt", "-o", "run", "--lines"),
    ],
)
def test_a_language_of_lines(refused, verb):
    assert "--language de is for prose" in refused(*verb, "--language", "de")


@pytest.mark.parametrize("verb", [("embed", "-o", "o.npz"), ("score",), ("score", "--json")])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_text_without_words_is_told(run, tmp_path, verb, content):
    (tmp_path / "empty.txt").write_text(content)
    code, _, err = run(*verb, "empty.txt")
    assert code == 0
    assert "Warning: There is no word in empty.txt" in err


def test_what_was_written_is_told(run, folder):
    _, out, err = run("embed", "text.txt", "-o", "o.npz", "-m", "model")
    assert (out, err) == ("", "Wrote o.npz: 3 sentences, 11 tokens\n")
    _, out, err = run("embed", "text.txt", "-o", "-", "-m", "model")
    assert (out.count("\n"), err) == (3, "")
    _, out, err = run("index", "build", "text.txt", "-o", "i", "-m", "model", "--lines")
    assert (out, err) == ("", "Wrote i: 11 words\n")


@pytest.mark.parametrize(
    ("arguments", "said", "options"),
    [
        (
            ("embed", "text.txt", "-o", "o.npz", "--layers", "foo"),
            "all, average, lstm, top, a number from 0 to 2 (-1 is the top), or several (0,2)",
            "--layers",
        ),
        (
            ("neighbours", "a [cat]", "--corpus", "text.txt", "--layers", "9"),
            "layers is 9; choose average, lstm, top, or a number from 0 to 2",
            "--layers",
        ),
        (
            ("embed", "text.txt", "-o", "o.npz", "--tokenizer", "bpe"),
            "There is no tokenizer 'bpe'",
            "--tokenizer",
        ),
        (
            ("embed", "text.txt", "-o", "o.npz", "--precision", "int2"),
            "precision is 'int2'",
            "--precision",
        ),
        (
            ("perplexity", "text.txt", "--options", "o.json"),
            "The model 'en' has its own options",
            "--options",
        ),
        (("info", "small", "--options", "o.json"), "'small' has its own options", "--options"),
        (
            ("embed", "text.txt", "-o", "o.npz", "-m", "text.txt"),
            "text.txt is neither a model directory, a zip archive nor HDF5 weights",
            "--model, --options",
        ),
        (
            ("neighbours", "a [cat]", "--index", "nope"),
            "nope is not an index: there is no such directory",
            "--index",
        ),
        (
            ("pretrain", "text.txt", "-o", "run", "--set", "foo=1"),
            "foo: no such setting.",
            "--set",
        ),
        (
            ("pretrain", "text.txt", "-o", "run", "--set", "train.epoch=3"),
            "train.epoch: no such setting. Did you mean train.epochs?",
            "--set",
        ),
        (
            ("pretrain", "text.txt", "-o", "run", "--set", "cell_dim=3"),
            "cell_dim: no such setting. Did you mean model.lstm.cell_dim?",
            "--set",
        ),
    ],
)
def test_messages_name_what_is_allowed_and_the_option(refused, arguments, said, options):
    found = refused(*arguments)
    assert said in found
    assert found.endswith(f" Options: {options}.\n")


def test_parameters_are_the_same_everywhere(run):
    for model in json.loads(run("models", "--json")[1])["models"]:
        if model["bundled"]:
            facts = json.loads(run("info", model["name"], "--json")[1])
            assert facts["parameters"] == model["parameters"]


def test_an_index_of_another_tokenizer(run, refused):
    assert run("index", "build", "text.txt", "-o", "i", "-m", "model", "--lines")[0] == 0
    search = ("neighbours", "a [cat]", "--index", "i", "-m", "model")
    assert run(*search)[0] == 0
    said = refused(*search, "--tokenizer", "characters")
    assert "made with the tokenizer 'whitespace', but 'characters' was chosen" in said
    assert said.endswith(" Options: --tokenizer.\n")
    assert "weights of another model" in refused(*search[:-2])


def test_the_directory_of_a_run(refused, folder, tiny_contents):
    (folder / "run").mkdir()
    native.write(tiny_contents, folder / "run" / "model")
    assert "Did you mean run/model?" in refused("info", "run")


def test_binary_files_for_the_probes(refused, folder):
    (folder / "binary.bin").write_bytes(b"\xff\xfe\x00")
    parts = ("--train", "binary.bin", "--dev", "binary.bin", "--test", "binary.bin")
    said = refused("probe", "pos", *parts)
    assert "convert it to utf-8" in said
    assert "errors=" not in said
    parts = ("--train", "nowhere", "--dev", "nowhere", "--test", "nowhere")
    assert "There is no directory nowhere" in refused("probe", "wic", *parts)
