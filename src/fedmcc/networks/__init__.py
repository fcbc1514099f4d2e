"""Encoders by name, projectors, and the online and target branches they make up."""

from typing import Protocol, runtime_checkable

from torch import nn

from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.resnet import ResNet18, ResNet34, ResNet50


@runtime_checkable
class EncoderOptions(Protocol):
    """A frozen dataclass of options that builds an encoder: a module with an integer `features`."""

    def build(self, channels: int, size: int) -> nn.Module:
        """The encoder for square images of this many channels and pixels."""
        ...


ENCODERS: dict[str, type[EncoderOptions]] = {
    "convnet": ConvNetOptions,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
}
"""Encoders by name, each a frozen dataclass of options with a method `build`; `fedmcc list encoders`.

Examples
--------
>>> from fedmcc import ENCODERS
>>> ENCODERS["convnet"]().build(channels=1, size=28).features
128
"""
