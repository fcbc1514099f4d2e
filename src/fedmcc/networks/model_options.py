"""Options of pretrained models of torch: where they are, and which part of them is trained."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from fedmcc.errors import InputError
from fedmcc.networks.adapters import AdaptedEncoder, add_adapters
from fedmcc.networks.fine_tuned import FineTunedEncoder, last_layers
from fedmcc.networks.frozen import FrozenModel, Pool
from fedmcc.networks.normalise import Normalise


@dataclass(frozen=True)
class ModelOptions:
    """A pretrained model in files of each machine; by default it is never trained, sent or stored."""

    path: Path | None = None  # of its files
    sha256: str | None = None  # of its files; None: any, and the run records it
    layers: int | Literal["all"] = 0  # last layers that are trained, sent and stored; 0: none
    adapters: int = 0  # rank of the adapters that are trained, sent and stored; 0: no adapters

    def __post_init__(self) -> None:
        if self.adapters < 0:
            raise InputError(f"encoder.adapters is {self.adapters}: give a rank, or 0 for none.")
        if self.adapters and self.layers:
            raise InputError("encoder.adapters and encoder.layers are both set: train adapters or layers.")
        if self.layers != "all" and self.layers < 0:
            raise InputError(f"encoder.layers is {self.layers}: give 0 or more, or all.")

    @property
    def frozen(self) -> bool:
        """Whether neither a layer nor an adapter is trained."""
        return not self.layers and not self.adapters

    def wrap(
        self, model: nn.Module, pool: Pool, normalise: Normalise, identity: str, *facts: str
    ) -> FrozenModel | FineTunedEncoder:
        """The encoder of a model, which is shared, with copies of the layers that are trained."""
        if self.frozen:
            return FrozenModel(model, pool, normalise, identity, *facts)
        if self.adapters:
            encoder: FineTunedEncoder = AdaptedEncoder(*add_adapters(model, self.adapters), pool, normalise)
        else:
            copy = deepcopy(model)
            trained = last_layers(copy, None if self.layers == "all" else self.layers)
            encoder = FineTunedEncoder(copy, trained, pool, normalise)
        encoder.identity = identity
        return encoder
