"""The contents of a model, independent of its format: what readers return and writers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from relmo.config import EncoderConfig, ModelConfig
from relmo.errors import FormatError
from relmo.model.bilm import BiLm
from relmo.text.characters import CharacterScheme
from relmo.text.lexicon import CHARACTER_MARKS, WORD_MARKS, Lexicon, build_scheme
from relmo.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Softmax:
    """The output layer, shared by both directions; row v belongs to word v of the vocabulary."""

    weight: Tensor  # (V, P)
    bias: Tensor  # (V,)


@dataclass(frozen=True)
class ModelContents:
    """A model as plain values.

    Attributes:
        config: sizes and architecture.
        tensors: parameters, under the names that `BiLm` gives them.
        origin: the program and files it came from, as text.
        lexicon: the characters and words of a model of the lexicon scheme.
        vocabulary: the words of the softmax.
        softmax: the output layer, if it was published.
        remainders: rounding errors of tensors that were converted to relmo's conventions, so that
            the conversion can be undone bit for bit (see ADR 2). Not used for computing.
        facts: facts about its training, for the model card.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    origin: str
    lexicon: Lexicon | None = None
    vocabulary: Vocabulary | None = None
    softmax: Softmax | None = None
    remainders: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_parameters(self) -> int:
        """Number of learned parameters, without the zero row of character padding."""
        encoder = self.config.encoder
        zeros = encoder.character_dim if encoder.scheme == "bytes" else 0
        return sum(tensor.numel() for tensor in self.tensors.values()) - zeros

    def check(self, where: str) -> None:
        """Raise `FormatError` unless the parts fit together; `where` names the file in errors."""
        expected = _build_hollow(self.config).state_dict()
        _check_tensors(self.tensors, expected, where)
        of_remainders = {name: t for name, t in expected.items() if name in self.remainders}
        _check_tensors(self.remainders, of_remainders, f"{where}: remainders")
        _check_lexicon(self.lexicon or Lexicon((), ()), self.config.encoder, where)
        if self.softmax is not None:
            n_words = self.softmax.bias.numel() if self.vocabulary is None else len(self.vocabulary)
            _check_softmax(self.softmax, n_words, self.config.lstm.projection_dim, where)

    def build_bilm(self) -> BiLm:
        """Build the network with these weights; float32 weights are not copied."""
        bilm = _build_hollow(self.config)
        weights = {name: tensor.float() for name, tensor in self.tensors.items()}
        bilm.load_state_dict(weights, assign=True)
        return bilm.eval()

    def build_scheme(self) -> CharacterScheme:
        """Build the scheme that turns tokens into this model's character ids."""
        return build_scheme(self.lexicon, self.config.encoder.max_characters)


class _Unfilled(TorchFunctionMode):
    """Skips parameter initialisation: on "meta" its only effect is to import a compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _build_hollow(config: ModelConfig) -> BiLm:
    """Build the network with names and shapes, but without values."""
    with torch.device("meta"), _Unfilled():
        return BiLm(config)


def _check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Check that exactly the expected tensors are there, with the expected shapes."""
    for name, tensor in expected.items():
        if name not in found:
            raise FormatError(f"{where}: tensor {name} {list(tensor.shape)} is missing.")
        if found[name].shape != tensor.shape:
            raise FormatError(
                f"{where}: tensor {name} has shape {list(found[name].shape)}, but the "
                f"configuration says {list(tensor.shape)}. They belong to different models."
            )
        if not found[name].is_floating_point():
            raise FormatError(
                f"{where}: tensor {name} holds {found[name].dtype}, not floating-point numbers."
            )
    extra = sorted(set(found) - set(expected))
    if extra:
        raise FormatError(f"{where}: tensors that the configuration does not know: {extra[:5]}.")


def _check_lexicon(lexicon: Lexicon, encoder: EncoderConfig, where: str) -> None:
    n_characters = encoder.n_characters if encoder.scheme == "lexicon" else 0
    for what, found, n, marks in (
        ("characters", lexicon.characters, n_characters, CHARACTER_MARKS),
        ("words", lexicon.words, encoder.n_words, WORD_MARKS),
    ):
        if len(found) != n:
            raise FormatError(
                f"{where}: a lexicon of {len(found):,} {what}, but the configuration says {n:,}."
            )
        missing = sorted(set(marks) - set(found))
        if found and missing:
            raise FormatError(f"{where}: the lexicon's {what} lack the marks {missing}.")


def _check_softmax(softmax: Softmax, n_words: int, dim: int, where: str) -> None:
    found = [list(softmax.weight.shape), list(softmax.bias.shape)]
    if found != [[n_words, dim], [n_words]]:
        raise FormatError(
            f"{where}: the softmax has shapes {found}, but {n_words:,} words and vectors of {dim} "
            f"need {[[n_words, dim], [n_words]]}. Remove the files that belong to another model."
        )
