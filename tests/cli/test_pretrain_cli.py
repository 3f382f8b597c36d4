"""`relmo pretrain` on the command line: what a user's mistakes look like, and how they are mended.

All but the last two end before anything is trained.
"""

import json
import string

import pytest

from relmo.train.run_directory import RunDirectory

SMALL = (
    "--preset=tiny",
    "--lines",
    "--tokenizer=whitespace",
    "--set=model.lstm.cell_dim=8",
    "--set=model.lstm.projection_dim=4",
    "--set=data.batch_tokens=64",
)


@pytest.fixture
def pretrain(run, tmp_path):
    """Run `relmo pretrain`; what it said, if it ended with exit code 2 and without a traceback."""
    (tmp_path / "text.txt").write_text("the cat sat\non the mat\n" * 10)

    def pretrain(*arguments):
        code, out, err = run("pretrain", *arguments, "--cache", "cache")
        assert out == ""
        assert "Traceback" not in err
        return code, err

    return pretrain


def refused(found):
    code, err = found
    assert code == 2
    return err


def test_no_text(pretrain, tmp_path):
    said = refused(pretrain("-o", "run", *SMALL))
    assert said.startswith("Error: There is no text to train on. Name files")
    assert not (tmp_path / "run").exists()


def test_no_such_text(pretrain):
    said = refused(pretrain("none.txt", "-o", "run", *SMALL))
    assert "none.txt' matches no file. Name files or directories" in said


@pytest.mark.parametrize("content", ["", "\n \n\n"])
def test_an_empty_text(pretrain, tmp_path, content):
    (tmp_path / "empty.txt").write_text(content)
    assert "holds no sentence" in refused(pretrain("empty.txt", "-o", "run", *SMALL))


def test_bytes_that_are_no_utf8_are_named_with_their_line(pretrain, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"one\ntwo\nna\xefve\n")
    said = refused(pretrain("text.txt", "latin.txt", "-o", "run", *SMALL))
    assert "latin.txt, line 3: found the byte 0xef" in said
    assert "--encoding" in said
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_an_unknown_preset(pretrain):
    said = refused(pretrain("text.txt", "-o", "run", "--preset", "huge"))
    assert "There is no preset 'huge'. Choose from:" in said
    assert "tiny" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.epochs", "names no value"),
        ("epochs=3", "The changed configuration has settings that do not fit"),
        ("train.epoch=3", "train.epoch"),
        ("train.epochs=many", "train.epochs"),
        ("train.learning_rate=-1", "greater than 0"),
        ("data.layout=rows", "data.layout"),
        ("model.tokenizer=letters", "letters"),
        ("model.encoder.n_words=5", "words are known by a lexicon"),
    ],
)
def test_a_wrong_setting(pretrain, setting, said):
    flags = [flag for flag in SMALL if not flag.startswith("--tokenizer")]
    assert said in refused(pretrain("text.txt", "-o", "run", *flags, "--set", setting))


def test_limits_that_are_none(pretrain):
    said = refused(pretrain("text.txt", "-o", "run", *SMALL, "--set", "train.epochs=none"))
    assert "nothing would end it" in said


def test_nothing_to_resume(pretrain, tmp_path):
    for arguments in (["text.txt"], []):
        said = refused(pretrain(*arguments, "-o", "run", "--resume"))
        assert "There is no run to resume" in said
        assert "Start a new one. Options: --resume." in said
    assert not (tmp_path / "run").exists()


def test_an_alphabetical_vocabulary(pretrain, tmp_path):
    letters = [f"{c}{i:02}" for c in string.ascii_lowercase for i in range(10)]
    n = {word: 1 + i * 7919 % 97 for i, word in enumerate(letters)}
    text = [word for word in letters for _ in range(n[word])]
    rows = [" ".join(text[i : i + 10]) for i in range(0, len(text), 10)]
    (tmp_path / "letters.txt").write_text("\n".join(rows))
    (tmp_path / "words.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *letters]))
    said = refused(pretrain("letters.txt", "-o", "run", *SMALL, "--vocabulary", "words.txt"))
    assert "words.txt is not sorted by falling frequency" in said


def test_a_vocabulary_without_the_special_words(pretrain, tmp_path):
    (tmp_path / "words.txt").write_text("the\ncat\nsat\n")
    said = refused(pretrain("text.txt", "-o", "run", *SMALL, "--vocabulary", "words.txt"))
    assert "words.txt begins with ['the', 'cat', 'sat']" in said


def test_too_little_to_hold_some_of_it_out(pretrain, tmp_path):
    (tmp_path / "one.txt").write_text("One sentence is not enough.\n")
    said = refused(pretrain("one.txt", "-o", "run", *SMALL))
    assert "too short to hold out a share of" in said
    assert "--valid" in said


def test_too_little_for_streams(pretrain):
    flags = ("--valid", "text.txt", "--set", "data.layout=stream")
    said = refused(pretrain("text.txt", "-o", "run", *SMALL, *flags))
    assert "80 tokens is too short for 128 streams of 20 steps" in said
    assert "data.n_streams=4" in said


def test_a_model_that_is_not_there(pretrain):
    assert "There is no model" in refused(pretrain("text.txt", "-o", "run", "--init", "no-model"))


def test_a_place_that_holds_something_else(pretrain, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("\\begin{document}")
    said = refused(pretrain("text.txt", "-o", "run", *SMALL, "--valid", "text.txt"))
    assert "already holds thesis.tex" in said
    assert [p.name for p in (tmp_path / "run").iterdir() if p.name != ".lock"] == ["thesis.tex"]


@pytest.mark.slow
def test_a_start_that_failed_is_not_in_the_way(pretrain, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"\xff\xff")
    command = ("-o", "run", *SMALL, "--epochs", "1", "--valid", "text.txt")
    refused(pretrain("bad.txt", *command))
    refused(pretrain("text.txt", *command, "--set", "data.layout=stream"))  # too short for that
    code, said = pretrain("text.txt", *command)
    assert code == 0
    assert said.startswith("Ended by epochs after 80 tokens")
    assert said.endswith("The model is run/model.\n")


@pytest.mark.slow
def test_a_run_goes_on_as_itself_only(pretrain, run, tmp_path):
    command = ("text.txt", "-o", "run", *SMALL, "--valid", "text.txt")
    assert pretrain(*command, "--epochs", "1")[0] == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_text()

    assert "already holds a run. Resume a run, or" in refused(pretrain(*command))
    said = refused(pretrain("-o", "run", "--resume", "--seed", "5"))
    assert "config.toml has train.seed = 0, but 5 was asked for" in said
    said = refused(pretrain(*command, "--resume"))
    assert "leave it out. Options: --preset." in said
    (tmp_path / "other.txt").write_text("another text\n")
    settings = RunDirectory(tmp_path / "run").config.read_text()
    said = refused(pretrain("other.txt", "-o", "run", "--resume", "--epochs", "9"))
    assert "was trained on other text" in said
    assert RunDirectory(tmp_path / "run").config.read_text() == settings
    assert "text.txt" in said
    said = refused(pretrain("-o", "run", "--resume", "--valid", "other.txt"))
    assert "was trained on other text" in said
    said = refused(pretrain("-o", "run", "--resume", "--vocabulary", "other.txt"))
    assert "leave it out. Options: --vocabulary." in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before

    # A run of an earlier version says nothing of a setting that has come since.
    config = RunDirectory(tmp_path / "run").config
    assert "case_noise = 0.0\n" in settings
    config.write_text(settings.replace("case_noise = 0.0\n", ""))
    said = refused(pretrain("-o", "run", "--resume", "--set", "data.case_noise=0.5"))
    assert "config.toml has data.case_noise = 0.0, but 0.5 was asked for" in said

    # Moved, it is the same text; and a run that has ended does nothing until it is given more.
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    code, _ = pretrain("moved.txt", "--valid", "moved.txt", "-o", "run", "--resume")
    assert (code, (tmp_path / "run" / "metrics.jsonl").read_text()) == (0, before)
    code, said = pretrain("-o", "run", "--resume", "--epochs", "3")
    assert code == 0
    assert said.startswith("Ended by epochs after 240 tokens")
    assert "epochs = 3\n" in config.read_text()
    assert "case_noise = 0.0\n" in config.read_text()

    code, out, _ = run("perplexity", "moved.txt", "-m", "run/model", "--json")
    assert (code, json.loads(out)["tokens"]) == (0, 80)
