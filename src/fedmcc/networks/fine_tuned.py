"""Pretrained encoders of which methods train the last layers or all of them."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import chain
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.networks.frozen import Pool
from fedmcc.networks.normalise import Normalise


class FineTunedEncoder(nn.Module):
    """An encoder whose state has only the layers that are trained: only they are sent and stored.

    The other layers are in files of each machine, do not change and are shared by all copies of the encoder.
    """

    pretrained = True
    shape: tuple[int, int, int]  # channels, height and width of the images
    features: int

    def __init__(self, model: nn.Module, trained: list[nn.Module], pool: Pool, normalise: Normalise) -> None:
        super().__init__()
        self._whole = (model.eval().requires_grad_(False),)  # in a tuple: no part of `state_dict`
        self.trained = nn.ModuleList(trained)
        self.normalise, self.pool = normalise, pool
        self.identity = ""  # SHA-256 of the files

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        return self.pool(self._whole[0], self.normalise(images))

    def _apply(self, fn: Any, recurse: bool = True) -> "FineTunedEncoder":
        """Move all layers with the encoder, for instance to another device."""
        self._whole[0]._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> "FineTunedEncoder":
        own = {id(tensor) for tensor in chain(self.trained.parameters(), self.trained.buffers())}
        whole = self._whole[0]
        for tensor in chain(whole.parameters(), whole.buffers()):
            if id(tensor) not in own:
                memo[id(tensor)] = tensor
        copy = type(self).__new__(type(self))
        memo[id(self)] = copy
        copy.__dict__.update(deepcopy(self.__dict__, memo))
        return copy


def last_layers(model: nn.Module, count: int | None) -> list[nn.Module]:
    """The last layers of a model and what follows them, such as a norm; None: the whole model."""
    if count is None:
        return [model]
    following: list[nn.Module] = []
    parent = model
    for part in list_of_layers(model).split("."):
        names = [child for child, _ in parent.named_children()]
        following = [parent.get_submodule(child) for child in names[names.index(part) + 1 :]] + following
        parent = parent.get_submodule(part)
    return [*list(parent.children())[-count:], *following]


def list_of_layers(model: nn.Module) -> str:
    """Name of the model's outermost list of modules: blocks of a transformer, stages of other models."""
    modules: Iterator[tuple[str, nn.Module]] = model.named_modules()
    return next(name for name, module in modules if isinstance(module, nn.ModuleList))
