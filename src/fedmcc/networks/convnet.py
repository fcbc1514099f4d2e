"""A small encoder for edge devices and laptops; the receptive field of its features is the whole image."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.heads import Norm, normalisation
from fedmcc.networks.small_maps import Conv2d

MIN_IMAGE_SIDE = 8
MAX_LAST_MAP_SIDE = 4
MAX_WIDTH_FACTOR = 8  # width of the last stage relative to the first


class ConvNet(nn.Module):
    """3x3 convolutions with pooling until the map is at most 4x4, then one convolution over the whole map."""

    def __init__(self, channels: int, size: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.features, self.shape = MAX_WIDTH_FACTOR * width, (channels, size, size)
        self.stages = nn.Sequential()
        inputs, outputs = channels, width
        while size > MAX_LAST_MAP_SIDE:
            self.stages.append(nn.Sequential(*_stage(inputs, outputs, 3, norm, pool=True)))
            inputs, outputs, size = outputs, min(2 * outputs, self.features), size // 2
        self.stages.append(nn.Sequential(*_stage(inputs, self.features, size, norm, pool=False)))

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        return self.collapse(self.maps(images))

    def maps(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        """The feature maps before the convolution over the whole map."""
        for stage in list(self.stages)[:-1]:
            images = stage(images)
        return images

    def collapse(self, maps: Float[Tensor, "n c2 h2 w2"]) -> Float[Tensor, "n d"]:
        """The features of these maps."""
        features: Tensor = self.stages[-1](maps).flatten(start_dim=1)
        return features


def _stage(inputs: int, outputs: int, kernel: int, norm: Norm, pool: bool) -> list[nn.Module]:
    """Layers of a stage; pooling comes before ReLU.

    Both are monotonic, so the output is the same, with a quarter of the ReLU computations.
    """
    convolution = Conv2d(inputs, outputs, kernel, padding=1 if pool else 0)
    pooling = [nn.MaxPool2d(2)] if pool else []
    return [convolution, normalisation(norm, outputs), *pooling, nn.ReLU(inplace=True)]


@dataclass(frozen=True)
class ConvNetOptions:
    """Small convolutional encoder with 8 times `width` features."""

    width: int = 16  # channels of the first stage; each later stage doubles them, up to 8 * width
    norm: Norm = "batch"

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images of this size."""
        if size < MIN_IMAGE_SIDE:
            raise InputError(
                f"Images of {size} pixels are too small for the convnet: "
                f"set views.size to {MIN_IMAGE_SIDE} or more."
            )
        if self.width < 1:
            raise InputError(f"encoder.width is {self.width}: give 1 or more.")
        return ConvNet(channels, size, self.width, self.norm)
