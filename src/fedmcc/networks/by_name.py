"""Encoders as people name them: a registered name, an ONNX file or a folder of the Hugging Face hub."""

from pathlib import Path
from typing import Any

from fedmcc.errors import InputError
from fedmcc.networks import ENCODERS


def encoder_section(name: str) -> dict[str, Any]:
    """The section [encoder] of a configuration for an encoder of this name or at this path."""
    if name in ENCODERS:
        return {"name": name}
    path = Path(name)
    is_onnx = path.suffix.lower() == ".onnx"
    if is_onnx and not path.is_file():
        raise InputError(f"There is no file {path}: give the path of an ONNX file.")
    if is_onnx:
        return {"name": "onnx", "path": str(path)}
    return {"name": "huggingface", "path": str(path)} if path.is_dir() else {"name": name}
