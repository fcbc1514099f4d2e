"""Writes the network of a run as an ONNX file, with a model card beside it."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmcc.config import name_of
from fedmcc.errors import InputError
from fedmcc.networks.onnx import OnnxOptions
from fedmcc.runs.directory import Run
from fedmcc.runs.export_network import OUTPUTS, ExportedNetwork, resizing
from fedmcc.runs.export_pretrained import with_onnx_encoder
from fedmcc.runs.model_card import CARD_MARK, ModelFacts, read_facts, write_card
from fedmcc.runs.predict import Predictor
from fedmcc.storage.atomic_files import require_own, write_output

MARKS = (b"\x12\x06fedmcc",)  # the field `producer_name` of an ONNX file
OPSET = 18
IR_VERSION = 8  # of ONNX 1.13: older programs can read the file
TOLERANCE = 1e-4  # largest difference between onnxruntime and torch
CHECKED_IMAGES = 8
PACKAGES = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True)
class Export:
    """The files that were written, and the largest difference between onnxruntime and torch."""

    model: Path
    card: Path
    difference: float


def export_onnx(run: Run, path: Path, force: bool = False) -> Export:
    """Write the network of a complete run with its names, merges and splits; other files need `force`."""
    card = path.with_name(path.name + ".md")
    require_own(path, MARKS, force)
    require_own(card, (CARD_MARK,), force)
    _require_packages()
    predictor = Predictor.load(run)
    facts = read_facts(run, predictor)
    network = _network(predictor)
    model = _to_onnx(network, predictor)
    _add_metadata(model, facts)
    content = model.SerializeToString()
    difference = _check(content, network, predictor)
    write_output(path, content)
    write_output(card, write_card(facts, path.name, sha256(content).hexdigest()))
    return Export(path, card, difference)


def _require_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Export needs the package {missing[0]}: install it with `pip install 'fedmcc[export]'`."
        )


def _network(predictor: Predictor) -> ExportedNetwork:
    settings, (sides, _) = predictor.settings, predictor.target
    temperature = 1.0 if predictor.geometry is None else predictor.geometry.temperature
    resize = resizing(sides, settings.views.size)
    return ExportedNetwork(predictor.net.online, resize, predictor.edits, temperature)


def _examples(predictor: Predictor, count: int) -> torch.Tensor:
    """Random images of the size and channels of the run's."""
    (height, width), channels = predictor.target
    pixels = np.random.default_rng(0).integers(256, size=(count, channels, height, width), dtype=np.uint8)
    return torch.from_numpy(pixels)


def _to_onnx(network: ExportedNetwork, predictor: Predictor) -> Any:
    """The network as a model of the package onnx, for any number of images."""
    images, options = _examples(predictor, 2), predictor.settings.encoder
    if isinstance(options, OnnxOptions) and options.path is not None:
        return with_onnx_encoder(network, options.path, images, _export)
    return _export(network, images, "images", list(OUTPUTS))


def _export(network: nn.Module, example: torch.Tensor, input: str, outputs: list[str]) -> Any:
    with _quiet_exporter():
        program = torch.onnx.export(
            network.eval(),
            (example,),
            dynamo=True,
            input_names=[input],
            output_names=outputs,
            dynamic_shapes=({0: torch.export.Dim("n")},),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep torch from printing what only its developers can use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _add_metadata(model: Any, facts: ModelFacts) -> None:
    from onnx import helper

    model.producer_name, model.producer_version = "fedmcc", version("fedmcc")
    model.ir_version = IR_VERSION
    model.doc_string = ""
    helper.set_model_props(
        model,
        {
            "fedmcc": version("fedmcc"),
            "config_sha256": facts.config_sha256,
            "method": name_of("method", facts.settings.method),
            "encoder": name_of("encoder", facts.settings.encoder),
            "clusters": json.dumps({str(number): name for number, name, _ in facts.clusters}),
            "classes": json.dumps(facts.classes),
            "input": f"uint8, n x {facts.channels} x {facts.sides[0]} x {facts.sides[1]}, 0 to 255",
        },
    )


def _check(content: bytes, network: ExportedNetwork, predictor: Predictor) -> float:
    """The largest difference of assignments between onnxruntime and torch; raise InputError if too large."""
    import onnxruntime

    images = _examples(predictor, CHECKED_IMAGES)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    computed = session.run([OUTPUTS[0]], {"images": images.numpy()})[0]
    difference = float(np.abs(computed - network(images)[0].numpy()).max())
    if not difference <= TOLERANCE:
        raise InputError(
            f"onnxruntime and torch differ by {difference:.1e}, so nothing was written: "
            "use another version of onnxruntime."
        )
    return difference
