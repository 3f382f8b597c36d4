"""The models that come with relmo: whole, small enough, and found by name from everywhere."""

import pytest

from relmo.formats import native, read_model
from relmo.formats.bundled import BUNDLED, FOLDER

LARGEST = {"en": 40e6, "zh": 10e6}  # bytes


@pytest.fixture(params=BUNDLED)
def model(request):
    return BUNDLED[request.param]


def test_every_folder_is_listed():
    assert {path.name for path in FOLDER.iterdir()} == set(BUNDLED)


def test_it_is_what_is_told_of_it(model):
    contents = read_model(model.name)
    softmax = contents.softmax
    assert contents.n_parameters == model.n_parameters
    assert len(contents.vocabulary) == len(softmax.bias)
    assert model.bytes <= LARGEST[model.name]


def test_its_card_tells_how_to_make_it_again(model):
    facts = read_model(model.name).facts
    for fact in ("text", "licence", "command", "recipe", "trained", "held-out perplexity"):
        assert facts[fact]
    assert facts["command"].startswith("`relmo pretrain ")
    card = (model.directory / "README.md").read_text(encoding="utf-8")
    assert facts["command"] in card


def test_a_directory_of_that_name_is_meant_by_its_path(model, tmp_path, monkeypatch, tiny_contents):
    monkeypatch.chdir(tmp_path)
    native.write(tiny_contents, tmp_path / model.name)
    assert read_model(model.name).config == read_model(model.directory).config
    assert read_model(f"./{model.name}").config == tiny_contents.config
