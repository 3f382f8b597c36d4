"""What a run is to be: presets, values, the model it goes on from, the run it resumes."""

import json

import pytest
import torch

from relmo.errors import ConfigError, DataError
from relmo.formats import ModelContents
from relmo.presets import list_presets, parse_toml, read_preset, to_toml, with_settings
from relmo.pretraining.resolve import (
    DEFAULT_PRESET,
    Inputs,
    read_inputs,
    resolve_config,
    resolve_inputs,
    resolve_resumed_inputs,
)


@pytest.fixture
def init() -> ModelContents:
    config = with_settings(read_preset("tiny"), ["model.lstm.cell_dim=24"]).model
    return ModelContents(config, dict[str, torch.Tensor](), "a test")


def test_the_default_preset():
    assert resolve_config(None, {}, ()) == read_preset(DEFAULT_PRESET)


def test_values_and_settings_replace_what_the_preset_has():
    values = {"data.lines": True, "data.language": None, "train.seed": 7, "train.epochs": 2}
    config = resolve_config("tiny", values, ["train.seed=8", "model.lstm.cell_dim=20"])
    assert (config.data.lines, config.data.language) == (True, "en")
    assert (config.train.seed, config.train.epochs, config.model.lstm.cell_dim) == (8, 2, 20)


def test_values_are_no_toml():
    """A tokenizer's name is a string, whatever it looks like."""
    config = resolve_config("tiny", {"data.language": '1" x', "data.encoding": "true"}, ())
    assert (config.data.language, config.data.encoding) == ('1" x', "true")


@pytest.mark.parametrize("limit", ["train.max_tokens", "train.max_minutes"])
def test_another_limit_takes_the_place_of_the_presets_epochs(limit):
    assert read_preset("tiny").train.epochs is not None
    assert resolve_config("tiny", {limit: 5}, ()).train.epochs is None
    assert resolve_config("tiny", {limit: 5, "train.epochs": 2}, ()).train.epochs == 2
    assert resolve_config("tiny", {limit: None}, ()) == read_preset("tiny")


def test_a_model_to_go_on_from_has_its_sizes(init):
    config = resolve_config("tiny", {"train.seed": 3}, ["model.tokenizer=whitespace"], init=init)
    assert config.model.lstm.cell_dim == 24
    assert config.model.tokenizer == "whitespace"
    assert config.train.seed == 3
    with pytest.raises(ConfigError, match=r"leave changes of model\.… out"):
        resolve_config("tiny", {}, ["model.lstm.cell_dim=64"], init=init)
    with pytest.raises(ConfigError, match=r"leave changes of model\.… out"):
        resolve_config("tiny", {}, ["model.encoder.max_characters=20"], init=init)


def test_a_run_to_resume_has_its_settings(tmp_path):
    began = with_settings(read_preset("tiny"), ["train.epochs=4", "data.lines=true"])
    path = tmp_path / "config.toml"
    path.write_text(to_toml(began))
    assert resolve_config(None, {}, (), resumed=path) == began
    more = resolve_config(None, {"train.epochs": 9}, (), resumed=path)
    assert more == began.model_copy(update={"train": began.train.model_copy(update={"epochs": 9})})
    with pytest.raises(ConfigError, match="preset tiny was given: leave it out"):
        resolve_config("tiny", {}, (), resumed=path)
    path.write_text("[model")
    with pytest.raises(ConfigError, match="is not TOML"):
        resolve_config(None, {}, (), resumed=path)
    with pytest.raises(DataError, match="There is no run to resume"):
        resolve_config(None, {}, (), resumed=tmp_path / "elsewhere" / "config.toml")


def test_names_mean_the_same_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    found = resolve_inputs(["a.txt", "-", "b/*.txt"], ["/v.txt"], "words.txt", "model")
    assert found.texts == (str(tmp_path / "a.txt"), "-", str(tmp_path / "b/*.txt"))
    assert found.valid == ("/v.txt",)
    assert found.vocabulary == str(tmp_path / "words.txt")
    assert found.init == str(tmp_path / "model")
    assert resolve_inputs(["a"], [], None, "original").init == "original"  # a published name


def test_a_resumed_run_needs_no_inputs_and_takes_no_others():
    before = {"texts": ["/a.txt"], "valid": ["/v.txt"], "vocabulary": "/words.txt", "init": "/m"}
    expected = Inputs(("/a.txt",), ("/v.txt",), "/words.txt", "/m")
    assert resolve_resumed_inputs(Inputs(()), before) == expected
    assert resolve_resumed_inputs(Inputs((), (), "/words.txt", "/m"), before) == expected
    moved = resolve_resumed_inputs(Inputs(("/b.txt",)), before)
    assert moved.texts == ("/b.txt",)
    for name in ("vocabulary", "init"):
        with pytest.raises(ConfigError, match=f"began with {name} .*: leave it out"):
            resolve_resumed_inputs(Inputs((), **{name: "/other"}), before)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"texts": 3}', '{"texts": []}', '{"texts": [1], "valid": []}']
)
def test_damaged_inputs_are_named(tmp_path, text):
    path = tmp_path / "inputs.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"inputs\.json is damaged"):
        read_inputs(path)


def test_inputs_are_read_back(tmp_path):
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps({"texts": ["/a.txt"], "valid": [], "key": "1"}))
    assert read_inputs(path)["texts"] == ["/a.txt"]


@pytest.mark.parametrize("preset", list_presets())
def test_settings_are_read_back_as_they_were_written(preset):
    changes = ["data.language='1\" x'", "train.max_minutes=1e-9", "train.ema=0.999"]
    config = with_settings(read_preset(preset), changes)
    assert parse_toml(to_toml(config), "a test") == config
    assert 'max_tokens = "none"' in to_toml(config)


# As version 0.1 wrote it.
OLD_TRAIN = """
[train]
optimizer = "adam"
learning_rate = 0.01
warmup = 0
decay = "cosine"
clip_norm = 1.0
epochs = 2
max_tokens = "none"
max_minutes = "none"
validate_every = 20
patience = "none"
checkpoint_minutes = 1e-09
seed = 0
"""


def test_settings_of_version_0_1_are_read(tmp_path):
    text = to_toml(read_preset("tiny"))
    path = tmp_path / "config.toml"
    path.write_text(text[: text.index("[train]")] + OLD_TRAIN)
    config = resolve_config(None, {}, (), resumed=path)
    assert (config.train.epochs, config.train.max_tokens) == (2, None)
    assert (config.train.decay, config.train.checkpoint_minutes) == ("cosine", 1e-9)
    new = (config.train.clip_value, config.train.ema, config.train.validate_epochs)
    assert new == (None, None, None)
