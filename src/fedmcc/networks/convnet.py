"""A small encoder for edge devices and laptops, whose last features see the whole image."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.heads import Norm, normalisation

MIN_IMAGE_SIDE = 8
MAX_LAST_MAP_SIDE = 4
MAX_WIDTH_FACTOR = 8  # times the first stage's width


class ConvNet(nn.Module):
    """3x3 convolutions and pooling until the map is at most 4x4, then one kernel over all of it."""

    def __init__(self, channels: int, size: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.features = MAX_WIDTH_FACTOR * width
        self.stages = nn.Sequential()
        inputs, outputs = channels, width
        while size > MAX_LAST_MAP_SIDE:
            self.stages.append(nn.Sequential(*_stage(inputs, outputs, 3, norm, pool=True)))
            inputs, outputs, size = outputs, min(2 * outputs, self.features), size // 2
        self.stages.append(nn.Sequential(*_stage(inputs, self.features, size, norm, pool=False)))

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        features: Tensor = self.stages(images).flatten(start_dim=1)
        return features


def _stage(inputs: int, outputs: int, kernel: int, norm: Norm, pool: bool) -> list[nn.Module]:
    """Pooled before it is rectified: the same numbers, since both keep order, for a quarter of the work."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=1 if pool else 0, bias=False)
    pooling = [nn.MaxPool2d(2)] if pool else []
    return [convolution, normalisation(norm, outputs), *pooling, nn.ReLU(inplace=True)]


@dataclass(frozen=True)
class ConvNetOptions:
    """Options of the small encoder; it has 8 times `width` features."""

    width: int = 16  # channels of the first stage, doubled by each that follows up to 8 times
    norm: Norm = "batch"

    def build(self, channels: int, size: int) -> nn.Module:
        """The encoder for square images of this size."""
        if size < MIN_IMAGE_SIDE:
            raise InputError(
                f"Images of {size} px are too small for the convnet: "
                f"set views.size to {MIN_IMAGE_SIDE} or more."
            )
        if self.width < 1:
            raise InputError(f"encoder.width is {self.width}: give 1 or more.")
        return ConvNet(channels, size, self.width, self.norm)
