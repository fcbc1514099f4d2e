"""Encoders by name, projectors, and the online and target branches built from them."""

from typing import Protocol, runtime_checkable

from torch import nn

from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.pixels import PixelsOptions
from fedmcc.networks.resnet import ResNet18, ResNet34, ResNet50


@runtime_checkable
class EncoderOptions(Protocol):
    """A frozen dataclass of options that builds an encoder, a module with an integer attribute `features`.

    Some methods also use `shape` (channels, height and width of the images), `maps(images)` and
    `collapse(maps)`, where `forward` is `collapse(maps(images))`.
    """

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images with this number of channels and this side in pixels."""
        ...


ENCODERS: dict[str, type[EncoderOptions]] = {
    "convnet": ConvNetOptions,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "pixels": PixelsOptions,
}
"""Encoders by name, each a frozen dataclass of options with a method `build`; `fedmcc list encoders`.

Examples
--------
>>> from fedmcc import ENCODERS
>>> ENCODERS["convnet"]().build(channels=1, size=28).features
128
"""
