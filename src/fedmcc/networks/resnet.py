"""ResNet-18, -34 and -50 without the classifier.

Modules have the same names as in torchvision, so that its published weights can be loaded unchanged.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.heads import Norm, normalisation
from fedmcc.networks.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise, Triple
from fedmcc.networks.pretrained import load_encoder
from fedmcc.networks.small_maps import Conv2d

Stem = Literal["imagenet", "cifar"]
Maps = Float[Tensor, "n c h w"]
BlockOutput = Float[Tensor, "n c2 h2 w2"]

WIDTHS = (64, 128, 256, 512)


class ResidualBlock(nn.Module, ABC):
    """A block that returns its input, resized by `downsample` if necessary, plus its residual."""

    expansion: ClassVar[int]
    downsample: nn.Module | None

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.add_layers(inputs, width, stride, norm)
        self.relu = nn.ReLU(inplace=True)
        outputs = width * self.expansion
        same = stride == 1 and inputs == outputs
        self.downsample = (
            None if same else nn.Sequential(conv(inputs, outputs, 1, stride), normalisation(norm, outputs))
        )

    @abstractmethod
    def add_layers(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        """Create the layers of the residual."""

    @abstractmethod
    def residual(self, maps: Maps) -> BlockOutput:
        """Compute the residual, which is added to the block's input."""

    def forward(self, maps: Maps) -> BlockOutput:
        shortcut = maps if self.downsample is None else self.downsample(maps)
        result: Tensor = self.relu(self.residual(maps) + shortcut)
        return result


class BasicBlock(ResidualBlock):
    """The block of ResNet-18 and -34: two 3x3 convolutions."""

    expansion = 1

    def add_layers(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), normalisation(norm, width)
        self.conv2, self.bn2 = conv(width, width, 3), normalisation(norm, width)

    def residual(self, maps: Maps) -> BlockOutput:
        maps = self.relu(self.bn1(self.conv1(maps)))
        result: Tensor = self.bn2(self.conv2(maps))
        return result


class Bottleneck(ResidualBlock):
    """The block of ResNet-50: 1x1, 3x3 and 1x1 convolutions, with the stride in the 3x3 convolution."""

    expansion = 4

    def add_layers(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        outputs = width * self.expansion
        self.conv1, self.bn1 = conv(inputs, width, 1), normalisation(norm, width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), normalisation(norm, width)
        self.conv3, self.bn3 = conv(width, outputs, 1), normalisation(norm, outputs)

    def residual(self, maps: Maps) -> BlockOutput:
        maps = self.relu(self.bn1(self.conv1(maps)))
        maps = self.relu(self.bn2(self.conv2(maps)))
        result: Tensor = self.bn3(self.conv3(maps))
        return result


class ResNet(nn.Module):
    """A stem, four layers of residual blocks and average pooling over the map."""

    shape: tuple[int, int, int]  # channels, height and width of the images
    normalise: nn.Module  # of the images, as the weights were trained

    def __init__(
        self, block: type[ResidualBlock], depths: tuple[int, ...], channels: int, stem: Stem, norm: Norm
    ) -> None:
        super().__init__()
        self.normalise = nn.Identity()
        imagenet = stem == "imagenet"
        self.conv1 = conv(channels, WIDTHS[0], 7, 2) if imagenet else conv(channels, WIDTHS[0], 3)
        self.bn1 = normalisation(norm, WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if imagenet else nn.Identity()
        inputs = WIDTHS[0]
        for number, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True), start=1):
            strides = [1 if number == 1 else 2] + [1] * (depth - 1)
            outputs = width * block.expansion
            sizes = [inputs] + [outputs] * (depth - 1)
            blocks = [block(size, width, stride, norm) for size, stride in zip(sizes, strides, strict=True)]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            inputs = outputs
        self.features = inputs

    def forward(self, images: Maps) -> Float[Tensor, "n d"]:
        return self.collapse(self.maps(images))

    def maps(self, images: Maps) -> BlockOutput:
        """The feature maps of the last layer."""
        maps: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(self.normalise(images)))))
        for number in range(1, len(WIDTHS) + 1):
            maps = self.get_submodule(f"layer{number}")(maps)
        return maps

    def collapse(self, maps: Maps) -> Float[Tensor, "n d"]:
        """The mean of the maps over their positions."""
        return maps.mean(dim=(2, 3))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Conv2d:
    """Build a convolution that changes the size of its map only by the stride."""
    return Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)


@dataclass(frozen=True)
class ResNetOptions:
    """Options common to all depths; any number of channels and any image size are supported."""

    block: ClassVar[type[ResidualBlock]]
    depths: ClassVar[tuple[int, ...]]
    stem: Stem = "imagenet"  # "cifar": 3x3, stride 1, no max-pooling, for images of about 32 pixels
    norm: Norm = "batch"
    weights: Path | None = None  # a safetensors file with torchvision's names; None: random weights
    mean: Triple | None = None  # of images in [0, 1]; None: torchvision's with weights, else not normalised
    std: Triple | None = None

    def resolve(self) -> "ResNetOptions":
        """Set the mean and standard deviation of torchvision's weights unless others are given."""
        if self.weights is None:
            return self
        return replace(self, mean=self.mean or IMAGENET_MEAN, std=self.std or IMAGENET_STD)

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for images with this number of channels."""
        if (self.mean is None) != (self.std is None):
            raise InputError("Only one of encoder.mean and encoder.std is set: set both or none.")
        normalised = self.mean is not None and self.std is not None
        inputs = 3 if normalised else channels  # grey images are repeated in three channels
        encoder = ResNet(self.block, self.depths, inputs, self.stem, self.norm)
        if self.mean is not None and self.std is not None:
            encoder.normalise = Normalise(self.mean, self.std)
        encoder.shape = (channels, size, size)
        if self.weights is not None:
            load_encoder(encoder, self.weights)
        return encoder


@dataclass(frozen=True)
class ResNet18(ResNetOptions):
    """ResNet-18: 11.2 million parameters, 512 features."""

    block = BasicBlock
    depths = (2, 2, 2, 2)


@dataclass(frozen=True)
class ResNet34(ResNetOptions):
    """ResNet-34: 21.3 million parameters, 512 features."""

    block = BasicBlock
    depths = (3, 4, 6, 3)


@dataclass(frozen=True)
class ResNet50(ResNetOptions):
    """ResNet-50: 23.5 million parameters, 2048 features."""

    block = Bottleneck
    depths = (3, 4, 6, 3)
