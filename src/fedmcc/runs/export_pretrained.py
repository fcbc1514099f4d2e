"""Graphs of networks with a pretrained encoder in an ONNX file: preprocessing, the file's graph, the head."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.networks.onnx import OnnxEncoder, pool_positions
from fedmcc.runs.export_network import OUTPUTS, ExportedNetwork, Outputs

Export = Callable[[nn.Module, Tensor, str, list[str]], Any]  # network, example, input, outputs: a model


class Preprocessing(nn.Module):
    """From pixels of 0 to 255 to the input of the file's graph."""

    def __init__(self, resize: nn.Module, normalise: nn.Module) -> None:
        super().__init__()
        self.resize, self.normalise = resize, normalise

    def forward(self, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n 3 h2 w2"]:
        pixels: Tensor = self.normalise(self.resize(images.float() / 255))
        return pixels


class Head(nn.Module):
    """From the output of the file's graph to assignments, clusters and features."""

    def __init__(self, network: ExportedNetwork) -> None:
        super().__init__()
        self.head = network.head

    def forward(self, maps: Float[Tensor, "n ..."]) -> Outputs:
        outputs: Outputs = self.head(pool_positions(maps))
        return outputs


def with_onnx_encoder(network: ExportedNetwork, path: Path, images: Tensor, export: Export) -> Any:
    """One model of the three parts; `export` makes a model of a part that torch computes."""
    encoder = network.encoder
    assert isinstance(encoder, OnnxEncoder)
    if isinstance(encoder.session.get_inputs()[0].shape[0], int):
        raise InputError(f"{path} takes a fixed number of images: export it with a dynamic batch.")
    preprocessing = Preprocessing(network.resize, encoder.normalise)
    front = export(preprocessing, images, "images", ["pixels"])
    back = export(Head(network), encoder.run(preprocessing(images)), "maps", list(OUTPUTS))
    return _join(front, _load(path, front.opset_import[0].version), back, encoder)


def _load(path: Path, opset: int) -> Any:
    """The model in a file, converted to a version of ONNX."""
    from onnx import load, version_converter

    try:
        return version_converter.convert_version(load(path), opset)
    except Exception:  # the converter of ONNX has exceptions of its own for each operator
        raise InputError(f"{path} cannot be converted to ONNX version {opset}: export it again.") from None


def _join(front: Any, middle: Any, back: Any, encoder: OnnxEncoder) -> Any:
    """One model of three, of which each takes the output of the one before."""
    from onnx import compose

    middle.ir_version = back.ir_version = front.ir_version
    front = compose.add_prefix(front, "front/", rename_inputs=False)
    middle = compose.add_prefix(middle, "encoder/")
    back = compose.add_prefix(back, "head/", rename_outputs=False)
    joined = compose.merge_models(front, middle, [("front/pixels", f"encoder/{encoder.input}")])
    links = [(f"encoder/{encoder.output}", "head/maps")]
    return compose.merge_models(joined, back, links, outputs=[*OUTPUTS])
