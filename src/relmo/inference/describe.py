"""Describe a model, the machine, and the models that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from relmo import __version__
from relmo.config import EncoderConfig, LstmConfig
from relmo.formats.bundled import BUNDLED
from relmo.formats.published import PUBLISHED, cache_directory, is_cached
from relmo.inference.model_source import ModelLike, read_contents
from relmo.machine import describe_machine
from relmo.model import int8, kernels


@dataclass(frozen=True)
class ModelDescription:
    """What a model is.

    Attributes:
        origin: the program and files it came from.
        parameters: number of learned parameters, without the softmax.
        output_dim: length of a vector, both directions together.
        lstm: sizes of the LSTMs.
        encoder: sizes of the token encoder.
        tokenizer: the name of its tokenizer.
        vocabulary: number of words of its vocabulary, if it has one.
        softmax: number of words that its softmax predicts, if it has one.
        facts: facts about its training.
    """

    origin: str
    parameters: int
    output_dim: int
    lstm: LstmConfig
    encoder: EncoderConfig
    tokenizer: str
    vocabulary: int | None
    softmax: int | None
    facts: Mapping[str, str]

    @property
    def layers(self) -> int:
        """Number of LSTM layers; the token encoder is layer 0 beside them."""
        return self.lstm.n_layers

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them, sizes and facts among them."""
        return {
            "origin": self.origin,
            "parameters": self.parameters,
            "layers": self.layers,
            "output_dim": self.output_dim,
            **self.lstm.model_dump(mode="json", exclude={"n_layers"}),
            **self.encoder.model_dump(mode="json", exclude={"projection"}),
            "tokenizer": self.tokenizer,
            "vocabulary": self.vocabulary,
            "softmax": self.softmax,
            **self.facts,
        }


def describe_model(model: ModelLike) -> ModelDescription:
    """Describe a model: format, sizes, layers, softmax, facts about its training.

    Args:
        model: a name, a path or a loaded model.

    Example:
        >>> import relmo
        >>> found = relmo.describe_model("en")
        >>> found.layers, found.output_dim, found.tokenizer
        (2, 512, 'words')
    """
    contents = read_contents(model)
    config = contents.config
    return ModelDescription(
        origin=contents.origin,
        parameters=contents.n_parameters,
        output_dim=config.output_dim,
        lstm=config.lstm,
        encoder=config.encoder,
        tokenizer=config.tokenizer,
        vocabulary=None if contents.vocabulary is None else len(contents.vocabulary),
        softmax=None if contents.softmax is None else len(contents.softmax.bias),
        facts=contents.facts,
    )


@dataclass(frozen=True)
class SystemDescription:
    """What relmo runs on.

    Attributes:
        relmo: version of relmo.
        torch: version of PyTorch.
        threads: number of PyTorch's threads.
        processor: name of the processor.
        instruction_sets: those of its instruction sets that matter here.
        torch_uses: the instruction set that PyTorch uses.
        lstm_cell: what computes the LSTM cell.
        int8: what computes in int8.
    """

    relmo: str
    torch: str
    threads: int
    processor: str
    instruction_sets: str
    torch_uses: str
    lstm_cell: str
    int8: str

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return asdict(self)


def describe_system() -> SystemDescription:
    """Describe the machine: processor, instruction sets, versions, kernels.

    Example:
        >>> import relmo
        >>> relmo.describe_system().relmo == relmo.__version__
        True
    """
    machine = describe_machine()
    return SystemDescription(
        relmo=__version__,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        processor=machine.processor,
        instruction_sets=" ".join(machine.instruction_sets),
        torch_uses=torch.backends.cpu.get_cpu_capability(),
        lstm_cell=kernels.description,
        int8=int8.describe(),
    )


@dataclass(frozen=True)
class KnownModel:
    """A model that has a name.

    Attributes:
        name: as `relmo.load` takes it.
        parameters: number of learned parameters, without the softmax.
        bytes: size of its files, estimated where they were never downloaded.
        trained_on: the text that it was trained on.
        licence: its licence.
        bundled: whether it comes with relmo.
        cached: whether it has been downloaded.
    """

    name: str
    parameters: int
    bytes: int
    trained_on: str
    licence: str
    bundled: bool
    cached: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return asdict(self)


@dataclass(frozen=True)
class KnownModels:
    """The models that have a name.

    Attributes:
        directory: where downloads are kept.
        models: bundled models, then published ones.
    """

    directory: str
    models: tuple[KnownModel, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON writes them."""
        return {"directory": self.directory, "models": [model.as_dict() for model in self.models]}


def list_models() -> KnownModels:
    """List the models that can be loaded by name: bundled with relmo, or published by AI2.

    Example:
        >>> import relmo
        >>> [model.name for model in relmo.list_models().models if model.bundled]
        ['en', 'zh']
    """
    bundled = [
        KnownModel(name, m.n_parameters, m.bytes, m.trained_on, m.licence, True, False)
        for name, m in BUNDLED.items()
    ]
    published = [
        KnownModel(
            name, m.n_parameters, m.approximate_bytes, m.trained_on, m.licence, False, is_cached(m)
        )
        for name, m in PUBLISHED.items()
    ]
    return KnownModels(str(cache_directory()), (*bundled, *published))
