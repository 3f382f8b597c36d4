"""What a model is made of and how it is trained: frozen values that refuse what they do not know.

Presets (`presets/`) and the `config.toml` of a run directory are such values in TOML; the
`config.json` of a model directory holds the part of the model.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from relmo.errors import ConfigError

N_BYTE_CHARACTERS = 262  # 256 bytes, 5 marks, and 0 for "no token here"

MAX_SEED = 2**32 - 1  # NumPy takes no larger one

# Upper bounds keep a damaged or hostile file from asking for all the memory there is.
Dim = Annotated[int, Field(ge=1, le=65_536)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
T = TypeVar("T")
# TOML has no null, so it is written "none".
OrNone = Annotated[T | None, BeforeValidator(lambda value: None if value == "none" else value)]
Filter = tuple[Annotated[int, Field(ge=1, le=256)], Dim]


class _Values(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EncoderConfig(_Values):
    """The token encoder: characters (and, in some models, words) to one vector per token.

    Attributes:
        scheme: "bytes", as the published models have it, or "lexicon": Unicode characters, words.
        n_characters: how many there are; 262 in the scheme "bytes", 0 reads words alone.
        character_dim: length of a character's vector.
        max_characters: per token, marks included; longer tokens are cut.
        filters: width and number of each convolution: [[1, 32], [2, 64]].
        n_highway: highway layers after the convolutions.
        activation: "relu" or "tanh", after the convolutions.
        n_words: of the lexicon; 0 reads characters alone.
        word_dim: length of a word's vector.
        projection: whether a linear layer projects to `lstm.projection_dim`.
    """

    scheme: Literal["bytes", "lexicon"] = "bytes"
    n_characters: int = Field(N_BYTE_CHARACTERS, ge=0, le=10_000_000)
    character_dim: Dim = 16
    max_characters: int = Field(50, ge=3, le=1024)
    filters: tuple[Filter, ...] = Field((), max_length=64)
    n_highway: int = Field(1, ge=0, le=16)
    activation: Literal["relu", "tanh"] = "relu"
    n_words: int = Field(0, ge=0, le=100_000_000)
    word_dim: int = Field(0, ge=0, le=65_536)
    projection: bool = True

    @property
    def n_filters(self) -> int:
        """Outputs of all convolutions together."""
        return sum(n for _, n in self.filters)

    @property
    def feature_dim(self) -> int:
        """What is known of a token before the projection: its word and its filters."""
        return self.word_dim + self.n_filters

    @model_validator(mode="after")
    def _fits_together(self) -> EncoderConfig:
        if self.scheme == "bytes" and self.n_characters != N_BYTE_CHARACTERS:
            raise ValueError(
                f"n_characters is {self.n_characters}, the byte scheme has {N_BYTE_CHARACTERS}"
            )
        if self.scheme == "bytes" and self.n_words:
            raise ValueError('words are known by a lexicon, so the scheme has to be "lexicon"')
        if bool(self.n_characters) != bool(self.filters):
            raise ValueError("characters need filters, and filters need characters")
        if bool(self.n_words) != bool(self.word_dim):
            raise ValueError("n_words and word_dim are either both 0 or both positive")
        if not self.n_characters and not self.n_words:
            raise ValueError("a token encoder reads characters, words or both, not neither")
        if not self.filters and self.n_highway:
            raise ValueError("highway layers follow the filters, and there are none")
        widest = max((width for width, _ in self.filters), default=0)
        if widest > self.max_characters:
            raise ValueError(f"a filter of width {widest} exceeds {self.max_characters} characters")
        return self


class LstmConfig(_Values):
    """One direction's stack of LSTM layers; both directions are alike.

    Attributes:
        cell_dim: H, the size of a cell.
        projection_dim: P, the output of a layer; a token's vector has both directions', 2P.
        n_layers: L.
        cell_clip: limit of the values of a cell, or none.
        projection_clip: limit of the values of a layer's output, or none.
        residual: whether a layer after the first adds its input to its output.
        projection: whether a linear layer projects the cell to `projection_dim`.
    """

    cell_dim: Dim
    projection_dim: Dim
    n_layers: int = Field(2, ge=1, le=16)
    cell_clip: OrNone[Positive] = 3.0
    projection_clip: OrNone[Positive] = 3.0
    residual: bool = True
    projection: bool = True


class ModelConfig(_Values):
    """A whole biLM.

    Attributes:
        encoder: the token encoder.
        lstm: the LSTM layers of one direction.
        tokenizer: what strings go through when a caller names none.
    """

    encoder: EncoderConfig
    lstm: LstmConfig
    tokenizer: str = "words"

    @model_validator(mode="after")
    def _sizes_agree(self) -> ModelConfig:
        dim = self.lstm.projection_dim
        for what, found, projected in (
            ("the encoder's filters and words", self.encoder.feature_dim, self.encoder.projection),
            ("cell_dim", self.lstm.cell_dim, self.lstm.projection),
        ):
            if not projected and found != dim:
                raise ValueError(f"without a projection, {what} ({found}) must equal {dim}")
        return self

    @property
    def output_dim(self) -> int:
        """Length of a token's vector in every layer: both directions side by side."""
        return 2 * self.lstm.projection_dim

    @property
    def n_outputs(self) -> int:
        """Vectors per token: the token encoder's and one per LSTM layer."""
        return self.lstm.n_layers + 1


class DataConfig(_Values):
    """What text is, and what it becomes: a vocabulary, and batches of one of two layouts.

    Attributes:
        lines: one sentence per line; otherwise text is prose, to be split into sentences.
        language: of prose, as an ISO 639 code.
        encoding: of the text.
        errors: what to do with bytes that do not decode.
        vocabulary_size: number of words to predict, special ones included.
        min_count: minimum number of occurrences of a word in the vocabulary.
        layout: "segments" reads each sentence from a zero state; "stream" reads `n_streams` texts
            side by side, `n_steps` tokens at a time, and carries the state over, as bilm-tf does.
        batch_tokens: per step, in segments.
        segment_tokens: maximum length of a segment; longer sentences are cut.
        joined: read runs of sentences of up to `segment_tokens` as one segment.
        n_streams: in streams, texts side by side.
        n_steps: in streams, tokens of each per step.
        case_noise: share of the sentences that are read in another case than they were written in.
        valid_share: share of the text that is held out where no text to validate on is given.
        valid_tokens: maximum number of tokens to validate on.
    """

    lines: bool = False
    language: str = "en"
    encoding: str = "utf-8"
    errors: Literal["strict", "replace", "ignore", "backslashreplace"] = "strict"
    vocabulary_size: Annotated[int, Field(ge=4, le=100_000_000)] = 50_000
    min_count: Count = 1
    layout: Literal["segments", "stream"] = "segments"
    batch_tokens: Count = 2560
    segment_tokens: Annotated[int, Field(ge=4)] = 256
    joined: bool = False
    n_streams: Count = 128
    n_steps: Count = 20
    case_noise: Share = 0.0
    valid_share: Share = 0.01
    valid_tokens: Count = 50_000


class ObjectiveConfig(_Values):
    """The loss: cross-entropy by sampled softmax, with dropout.

    Attributes:
        n_samples: number of negative samples; 0 means the full softmax.
        dropout: share of each layer's input, and of the top layer's output, that is dropped.
        loss_scale: what the loss is multiplied by before its gradient is taken.
        unigram_bias: start the bias of a new softmax as the log frequency of each word.
    """

    n_samples: Annotated[int, Field(ge=0)] = 4096
    dropout: Share = 0.1
    loss_scale: Positive = 1.0
    unigram_bias: bool = True


class TrainConfig(_Values):
    """How anything is trained. Of the limits, the first to be reached ends training.

    Settings that do not fit are refused with pydantic's `ValidationError`, a `ValueError`;
    `relmo.config.parse_config(TrainConfig, {"epochs": 3}, "my task")` raises a `ConfigError`.

    Attributes:
        optimizer: "adam" or "adagrad", of pre-training; a `ModuleLearner` is given its own.
        learning_rate: after the warm-up.
        warmup: steps in which the learning rate rises.
        decay: the learning-rate schedule after that: "none", "cosine", "linear" or "plateau".
        plateau_factor: what "plateau" multiplies the learning rate by.
        plateau_patience: validations without a better one until it does so.
        clip_norm: of all gradients together, in pre-training; a `ModuleLearner` has `clip`.
        clip_value: of every single gradient, likewise.
        ema: decay of an exponential moving average of the weights, which then is what is evaluated
            and exported, in pre-training; a `ModuleLearner` has its own.
        epochs: limit.
        max_tokens: limit in units of the learner, which are words in pre-training.
        max_minutes: limit.
        validate_every: steps between validations.
        validate_epochs: epochs between validations, instead of `validate_every`.
        patience: early stopping: so many validations without a better one end training.
        checkpoint_minutes: between checkpoints.
        seed: of dropout and whatever else is random in a step.

    Example:
        >>> from relmo.config import TrainConfig
        >>> TrainConfig(epochs=3, decay="cosine", patience=2).learning_rate
        0.001
    """

    optimizer: Literal["adam", "adagrad"] = "adam"
    learning_rate: Positive = 1e-3
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["none", "cosine", "linear", "plateau"] = "none"
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    plateau_patience: Count = 2
    clip_norm: OrNone[Positive] = 10.0
    clip_value: OrNone[Positive] = None
    ema: OrNone[Share] = None
    epochs: OrNone[Count] = 10
    max_tokens: OrNone[Count] = None
    max_minutes: OrNone[Positive] = None
    validate_every: Count = 500
    validate_epochs: OrNone[Count] = None
    patience: OrNone[Count] = None
    checkpoint_minutes: Positive = 10.0
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0

    @model_validator(mode="after")
    def _ends(self) -> TrainConfig:
        if self.epochs is self.max_tokens is self.max_minutes is None:
            raise ValueError("nothing would end it: give epochs, max_tokens or max_minutes")
        return self


class PretrainConfig(_Values):
    """Everything that a pre-training run depends on, but for its text.

    A setting is named by its table and its name, such as "model.lstm.cell_dim" or "train.epochs".

    Attributes:
        model: the network and its tokenizer.
        data: the text, the vocabulary and the batches.
        objective: the loss.
        train: the optimizer, the schedule and the limits.

    Example:
        >>> from relmo.presets import read_preset, with_settings
        >>> config = with_settings(read_preset("small"), ["model.lstm.cell_dim=512"])
        >>> config.model.lstm.cell_dim, config.data.layout
        (512, 'segments')
    """

    model: ModelConfig
    data: DataConfig = DataConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    train: TrainConfig = TrainConfig()


def check_seed(seed: int) -> None:
    """Refuse a random seed that some generator would not take."""
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(
            f"seed is {seed}; expected a number from 0 to {MAX_SEED}.", settings=["seed"]
        )


Model = TypeVar("Model", bound=BaseModel)


def parse_config(
    kind: type[Model], values: Any, where: str, *, settings: Sequence[str] = ()
) -> Model:
    """Check `values` against `kind`; `where` names their source in the error.

    `settings` names the parameters that they come from, as in `RelmoError`.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a table of settings, found {type(values).__name__}")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc'])) or 'all together'}: {_explain(kind, e)}"
            for e in error.errors(include_url=False)
        ]
        raise ConfigError(
            "\n".join([f"{where} has settings that do not fit:", *lines]), settings=settings
        ) from None


def _explain(kind: type[BaseModel], error: ErrorDetails) -> str:
    """Say what is wrong with a setting, with names like one that does not exist."""
    if error["type"] != "extra_forbidden":
        return error["msg"]
    names = [".".join(path) for path in _setting_names(kind)]
    name = ".".join(map(str, error["loc"]))
    last = {full.rpartition(".")[2]: full for full in reversed(names)}
    near = difflib.get_close_matches(name, names, cutoff=0.8) or [
        last[like] for like in difflib.get_close_matches(name.rpartition(".")[2], last, cutoff=0.8)
    ]
    return f"no such setting. Did you mean {' or '.join(near)}?" if near else "no such setting."


def _setting_names(kind: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ((name, *path) for path in _setting_names(field.annotation))
        else:
            yield (name,)
