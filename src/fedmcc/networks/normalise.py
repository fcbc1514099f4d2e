"""Inputs as a pretrained encoder was trained on them: three channels, normalised by mean and deviation."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """Repeats a grey image in three channels and normalises each; it has no weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Triple, std: Triple) -> None:
        super().__init__()
        self.register_buffer("mean", _column(mean), persistent=False)
        self.register_buffer("std", _column(std), persistent=False)
        if not bool((self.std > 0).all()):
            raise InputError(f"The standard deviation of an encoder is {list(std)}: give numbers above 0.")

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 h w"]:
        return (images.expand(-1, 3, -1, -1) - self.mean) / self.std


def _column(values: Triple) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def read_triple(values: object, name: str) -> Triple:
    """Three numbers of a file; raises InputError if the file has something else."""
    if isinstance(values, list | tuple) and len(values) == 3 and all(map(_is_number, values)):
        first, second, third = map(float, values)
        return first, second, third
    raise InputError(f"The {name} of an encoder is {values}: give three numbers.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
