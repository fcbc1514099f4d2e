"""Encoders by name, projectors, and the online and target branches built from them."""

import logging
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from torch import nn

from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.dinov2 import DinoV2Small
from fedmcc.networks.efficientnet_lite import EfficientNetLite0, EfficientNetLite1, EfficientNetLite2
from fedmcc.networks.huggingface import HuggingFaceOptions
from fedmcc.networks.onnx import OnnxOptions
from fedmcc.networks.pixels import PixelsOptions
from fedmcc.networks.resnet import ResNet18, ResNet34, ResNet50

PLUGINS = "fedmcc.encoders"  # the entry-point group of packages that add encoders

log = logging.getLogger(__name__)


@runtime_checkable
class EncoderOptions(Protocol):
    """A frozen dataclass of options that builds an encoder, a module with an integer attribute `features`.

    Some methods also use `shape` (channels, height and width of the images), `maps(images)` and
    `collapse(maps)`, where `forward` is `collapse(maps(images))`.

    Options of pretrained weights may have `resolve()`, which records what identifies the weights, and
    `image_size()`, the side in pixels of the images that they were trained on.
    """

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images with this number of channels and this side in pixels."""
        ...


ENCODERS: dict[str, type[EncoderOptions]] = {
    "convnet": ConvNetOptions,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet50": ResNet50,
    "lite0": EfficientNetLite0,
    "lite1": EfficientNetLite1,
    "lite2": EfficientNetLite2,
    "dinov2-small": DinoV2Small,
    "pixels": PixelsOptions,
    "onnx": OnnxOptions,
    "huggingface": HuggingFaceOptions,
}
"""Encoders by name, each a frozen dataclass of options with a method `build`; `fedmcc list encoders`.

Examples
--------
>>> from fedmcc import ENCODERS
>>> ENCODERS["convnet"]().build(channels=1, size=28).features
128
"""


def _of_other_packages() -> dict[str, type[EncoderOptions]]:
    """Encoders that installed packages add; one that cannot be imported is left out with a warning."""
    found = {}
    for entry in entry_points(group=PLUGINS):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # any error of a package of somebody else
            log.warning("The encoder %s of %s cannot be imported: %r.", entry.name, entry.value, error)
    return found


ENCODERS |= {name: kind for name, kind in _of_other_packages().items() if name not in ENCODERS}


def is_frozen(options: EncoderOptions) -> bool:
    """Whether these options build an encoder that cannot be trained and whose weights are never sent."""
    return bool(getattr(options, "frozen", False))


def in_files(options: EncoderOptions) -> bool:
    """Whether every machine reads the encoder from files of its own, which their SHA-256 identifies."""
    return hasattr(options, "sha256")


def resolve_encoder(options: EncoderOptions) -> EncoderOptions:
    """Complete the options of an encoder from its files, such as their SHA-256."""
    resolve = getattr(options, "resolve", None)
    return resolve() if resolve else options


def native_size(options: EncoderOptions) -> int | None:
    """Side in pixels of the images that a pretrained encoder was trained on; None: any size."""
    image_size = getattr(options, "image_size", None)
    return image_size() if image_size else None
