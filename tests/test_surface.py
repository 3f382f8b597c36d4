"""The public surface: a function behind every verb, and the same answer from both."""

import json
import warnings
from dataclasses import is_dataclass

import numpy as np
import pytest
import torch
from typer.main import get_command

import relmo
from relmo.cli import app
from relmo.errors import ConfigError, DataError, FormatError, RelmoWarning
from relmo.formats import ModelContents, native
from relmo.formats.contents import Softmax
from relmo.inference.model_source import open_model
from relmo.text.vocabulary import SPECIAL, Vocabulary

WORDS = ("the", "cat", "dog", "sat", "ran", "present", "a", ".")
PROSE = "the cat sat . The dog\nran . a cat ran .\n\nthe present .\n"
LINES = "the cat sat .\nThe dog ran .\na cat ran .\nthe present .\n"
PRESENT = "".join(f"{a} present {b} .\n" for a in ("at", "a") for b in ("from", "to", "now"))


@pytest.fixture(scope="module")
def contents(tiny_contents):
    torch.manual_seed(5)
    dim, words = tiny_contents.config.lstm.projection_dim, (*SPECIAL, *WORDS)
    softmax = Softmax(torch.randn(len(words), dim), torch.zeros(len(words)))
    config, tensors = tiny_contents.config, tiny_contents.tensors
    return ModelContents(config, tensors, "a test", vocabulary=Vocabulary(words), softmax=softmax)


@pytest.fixture(autouse=True)
def folder(contents, tmp_path, monkeypatch):
    """A folder with a model, texts, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    native.write(contents, tmp_path / "model")
    for name, text in {"prose": PROSE, "lines": LINES, "present": PRESENT}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


# ---- names --------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_listed():
    assert sorted(relmo.__all__) == relmo.__all__
    assert set(relmo.__all__) <= set(dir(relmo))
    assert {"__version__", "__doc__"} <= set(dir(relmo))
    for name in relmo.__all__:
        assert getattr(relmo, name) is not None
    assert set(relmo._HOMES) == set(relmo.__all__) - {"errors"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = relmo.nothing


def test_the_old_name_of_the_model_warns():
    with pytest.warns(DeprecationWarning, match=r"relmo\.Model"):
        assert relmo.Embedder is relmo.Model
    assert "Embedder" not in dir(relmo)


FUNCTIONS = {
    "cache": "list_cache",
    "cache clear": "clear_cache",
    "convert": "convert",
    "demo": None,  # a tour, for people only
    "embed": "embed_file",
    "index build": "build_index",
    "index recall": "measure_recall",
    "index search": "search_index",
    "info": "describe_model",
    "models": "list_models",
    "neighbours": "neighbours",
    "perplexity": "perplexity",
    "pretrain": "pretrain",
    "probe pos": "probe_pos",
    "probe wic": "probe_wic",
    "score": "score_file",
    "senses": "find_senses",
    "substitutes": "substitutes",
}


def verbs():
    for name, command in get_command(app).commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {verb}", one) for verb, one in command.commands.items())
            if command.invoke_without_command:
                yield name, command
        else:
            yield name, command


def test_every_verb_has_a_function():
    assert {name for name, _ in verbs()} == set(FUNCTIONS)
    assert set(filter(None, FUNCTIONS.values())) <= set(relmo.__all__)


# ---- one convention for options -----------------------------------------------------------------


def test_options_mean_the_same_in_every_verb():
    by_line, corpora = {"embed", "score", "perplexity"}, {"senses", "index build", "neighbours"}
    for name, command in verbs():
        options = {opt: p for p in command.params for opt in (*p.opts, *p.secondary_opts)}
        assert ("--prose" in options) == (name in by_line | corpora | {"pretrain"}), name
        if "--prose" in options:
            assert options["--prose"] is options["--lines"]
            assert options["--prose"].is_flag
            assert {"--language", "--encoding", "--errors"} <= options.keys()
            assert name == "pretrain" or options["--lines"].default is (name in by_line)
            texts = [p for p in command.params if "by default" in (p.help or "")]
            kind = "one sentence per line" if name in by_line else "prose"
            assert any(f"by default {kind}" in p.help for p in texts), name
        for short, long in (("-m", "--model"), ("-o", "--output")):
            assert short not in options or options[short] is options[long], name
        if "--layer" in options:
            assert options["--layer"].hidden
            assert "--layers" in options
        for option in ("--model", "--output", "--seed", "--threads", "--language", "--layers"):
            assert option not in options or not options[option].is_flag, (name, option)
        assert "--json" not in options or options["--json"].is_flag, name


def test_prose_and_lines_of_every_verb_that_reads_text(run):
    """The same sentences, read as prose and line by line, give the same."""
    for verb in (["perplexity", "--json"], ["score", "--json"], ["embed", "-o", "-"]):
        model = ("-m", "model", "--tokenizer", "words")
        by_line = run(*verb, "lines.txt", *model)
        assert by_line[0] == 0, by_line
        assert by_line == run(*verb, "lines.txt", "--lines", *model)
        assert by_line == run(*verb, "prose.txt", "--prose", "--language", "en", *model)
    build = ("index", "build", "-o")
    assert run(*build, "lines.index", "lines.txt", "--lines", "-m", "model")[:2] == (0, "")
    n_words = len(relmo.VectorIndex("lines.index"))
    assert n_words > 10
    for verb in (build, ["index", "build", "--language", "de", "-o"]):
        prose = run(*verb, f"prose{len(verb)}.index", "prose.txt", "-m", "model")
        assert prose[:2] == (0, "")
        assert len(relmo.VectorIndex(f"prose{len(verb)}.index")) == n_words


def test_an_old_value_of_prose_is_refused(run):
    code, _, said = run("perplexity", "prose.txt", "--prose", "en", "-m", "model")
    assert code == 2
    assert "--prose takes no value" in said


@pytest.mark.parametrize(
    "command",
    [
        ["index", "build", "lines.txt", "-o", "an.index", "--lines"],
        ["neighbours", "the [cat] sat", "--corpus", "lines.txt", "--lines"],
        ["senses", "present", "--corpus", "present.txt", "--lines", "-n", "1"],
    ],
)
def test_the_old_name_of_layers_warns(run, command):
    with warnings.catch_warnings():
        warnings.simplefilter("always", RelmoWarning)
        code, old, said = run(*command, "-m", "model", "--layer", "1")
    assert code == 0, said
    assert said.splitlines()[0] == (
        "Warning: --layer is now called --layers; the old name will be removed in 0.4."
    )
    code, new, said = run(
        *[c.replace("an.index", "b.index") for c in command], "-m", "model", "--layers", 1
    )
    assert (code, new) == (0, old)
    assert "Warning" not in said
    if "-o" in command:
        assert relmo.VectorIndex("an.index").about["layers"] == 1


# ---- the JSON of a verb is as_dict() of its function's result ------------------------------------

ANSWERS = {
    "perplexity lines.txt -m model": lambda: relmo.perplexity("lines.txt", "model"),
    "perplexity prose.txt -m model --prose": lambda: relmo.perplexity(
        "prose.txt", "model", text_options=relmo.TextOptions(prose=True)
    ),
    "substitutes the_[cat]_sat -m model -k 3": lambda: relmo.substitutes(
        "the [cat] sat", "model", k=3
    ),
    "neighbours cat -m model -k 2": lambda: relmo.neighbours("cat", "model", k=2),
    "neighbours the_[cat]_sat -m model -k 2 --corpus prose.txt": lambda: relmo.search_corpus(
        "the [cat] sat", "prose.txt", "model", k=2
    ),
    "neighbours the_[cat]_sat -m model -k 2 --index index": lambda: relmo.search_index(
        "the [cat] sat", "index", "model", k=2
    ),
    "index search the_[cat]_sat -m model -k 2 -i index": lambda: relmo.search_index(
        "the [cat] sat", relmo.VectorIndex("index"), relmo.load("model"), k=2
    ),
    "senses present -m model --corpus present.txt --lines -n 2": lambda: relmo.find_senses(
        "present",
        ["present.txt"],
        "model",
        options=relmo.SenseOptions(n_senses=2),
        text_options=relmo.TextOptions(),
    ),
    "info model": lambda: relmo.describe_model("model"),
    "info --system": relmo.describe_system,
    "models": relmo.list_models,
    "cache": relmo.list_cache,
    "cache clear": relmo.clear_cache,
}


@pytest.mark.parametrize("command", ANSWERS)
def test_json_is_what_the_function_returns(run, folder, command):
    if "index" in command:
        relmo.build_index("prose.txt", "index", "model")
    words = [word.replace("_", " ") for word in command.split()]
    code, shown, said = run(*words, "--json")
    assert code == 0, said
    result = ANSWERS[command]()
    assert is_dataclass(result)
    assert result.__dataclass_params__.frozen
    values = result.as_dict()
    assert values == json.loads(json.dumps(values))  # plain values, lists and not tuples
    assert json.loads(shown) == values


def test_score_prints_an_object_per_line(run):
    for options in ([], ["--least", 2]):
        code, shown, _ = run("score", "lines.txt", "-m", "model", "--json", *options)
        assert code == 0
        least = options[1] if options else None
        expected = [line.as_dict() for line in relmo.score_file("lines.txt", "model", least=least)]
        assert len(expected) == 4
        assert [json.loads(line) for line in shown.splitlines()] == expected


def test_recall_is_that_of_the_function(run):
    pytest.importorskip("faiss", reason="needs relmo[faiss]")
    options = relmo.IndexOptions(approximate=True)
    index = relmo.build_index("prose.txt", "fast", "model", options=options)
    _, shown, _ = run("index", "recall", "-i", "fast", "-k", 2, "--queries", 4, "--json")
    assert json.loads(shown) == relmo.measure_recall(index, k=2, queries=4).as_dict()


# ---- what functions take ------------------------------------------------------------------------


def test_a_model_may_be_a_name_a_path_a_source_or_loaded(folder):
    loaded = relmo.load("model")
    for model in ("model", folder / "model", relmo.ModelSource("model"), loaded):
        assert relmo.perplexity("lines.txt", model) == relmo.perplexity("lines.txt", loaded)
    assert open_model(loaded) is loaded
    assert open_model("model", tokenizer="characters").tokenizer == "characters"
    assert (
        open_model(relmo.ModelSource("model", tokenizer="words"), tokenizer="x").tokenizer
        == "words"
    )
    assert relmo.describe_model(loaded).as_dict() == relmo.describe_model("model").as_dict()


def test_text_may_be_a_path_or_several(folder):
    (folder / "texts").mkdir()
    one, two = folder / "texts" / "1.txt", folder / "texts" / "2.txt"
    one.write_text("the cat sat .\n\n")
    two.write_text("a dog ran .\n")
    lines = [line.text for line in relmo.score_file([one, str(two)], "model")]
    assert lines == ["the cat sat .", "", "a dog ran ."]
    assert [line.text for line in relmo.score_file(folder / "texts", "model")] == lines
    assert [line.line for line in relmo.score_file("texts/*.txt", "model")] == [1, 2, 3]
    with pytest.raises(DataError, match="matches no file"):
        relmo.score_file("none.txt", "model")


def test_embed_file_writes_what_embed_gives():
    model = relmo.load("model")
    found = relmo.embed_file("lines.txt", "vectors.npz", model, layers="all")
    assert found.as_dict() == {"path": "vectors.npz", "sentences": 4, "tokens": 15}
    expected = model.embed(LINES.splitlines(), layers="all")
    with np.load("vectors.npz") as vectors:
        for number, array in enumerate(expected):
            assert np.allclose(vectors[str(number)], array, atol=1e-6)
    prose = relmo.TextOptions(prose=True)
    assert relmo.embed_file("prose.txt", "prose.npz", model, text_options=prose).sentences == 4


def test_mistakes_show_before_a_model_is_loaded(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr("relmo.inference.model_source.load", refuse)
    latin = relmo.TextOptions(encoding="klingon")
    with pytest.raises(ConfigError, match=r"must end in one of"):
        relmo.embed_file("lines.txt", "vectors.doc")
    with pytest.raises(ConfigError, match="workers is 0"):
        relmo.embed_file("lines.txt", "vectors.npz", workers=0)
    with pytest.raises(ConfigError, match="Unknown encoding 'klingon'"):
        relmo.perplexity("lines.txt", text_options=latin)
    with pytest.raises(ConfigError, match="least is 0"):
        relmo.score_file("lines.txt", least=0)
    with pytest.raises(ConfigError, match=r"a\.gif must end"):
        relmo.find_senses("present", "present.txt", pictures=["a.gif"])
    with pytest.raises(FormatError, match="is not an index"):
        relmo.search_index("the [cat]", "nowhere")
    with pytest.raises(ConfigError, match="to is 'onnx'"):
        relmo.convert("en", "out", to="onnx")
    with pytest.raises(ConfigError, match="dtype is 'float16'"):
        relmo.convert("en", "out", to="bilm-tf", dtype="float16")


def test_an_index_has_a_layer_with_a_name():
    mix = relmo.ScalarMix(3)
    with pytest.raises(ConfigError, match="a ScalarMix has no name"):
        relmo.build_index("lines.txt", "i", "model", options=relmo.IndexOptions(layers=mix))


def test_convert_a_loaded_model(contents):
    model = relmo.load("model")
    assert relmo.convert(model, "copy").name == "copy"
    assert relmo.load("copy").fingerprint == model.fingerprint
    with pytest.raises(DataError, match="not empty"):
        relmo.convert("model", "copy")


def test_library_errors_name_no_flags(run):
    for command, options in (
        (["embed", "lines.txt", "-m", "model", "-o", "v.npz", "--dtype", "int3"], "--dtype"),
        (["senses", "cat dog", "-m", "model", "--corpus", "lines.txt"], "--tokenizer"),
    ):
        code, _, said = run(*command)
        assert code == 2
        assert said.endswith(f" Options: {options}.\n")
    with pytest.raises(ConfigError) as error:
        relmo.find_senses("cat dog", "lines.txt", "model")
    assert "--" not in str(error.value)
