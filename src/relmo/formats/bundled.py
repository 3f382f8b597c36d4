"""The models that are part of the package, by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "bundled"


@dataclass(frozen=True)
class BundledModel:
    """A bundled model; more about it is on its model card."""

    name: str
    n_parameters: int  # without the softmax
    trained_on: str
    licence: str = "Apache-2.0"

    @property
    def directory(self) -> Path:
        """Directory of the model."""
        return FOLDER / self.name

    @property
    def bytes(self) -> int:
        """Size of its files, in bytes."""
        return sum(file.stat().st_size for file in self.directory.iterdir())


_MODELS = (
    BundledModel("en", n_parameters=6_167_888, trained_on="English novels, speeches and reviews"),
    BundledModel("zh", n_parameters=3_196_480, trained_on="four Chinese novels"),
)
BUNDLED: Mapping[str, BundledModel] = {model.name: model for model in _MODELS}
