"""Encoders as people name them: a registered name, an ONNX file or a folder of the Hugging Face hub."""

from pathlib import Path
from typing import Any

from fedmcc.errors import InputError


def encoder_section(name: str) -> dict[str, Any]:
    """The section [encoder] of a configuration for an encoder of this name or at this path."""
    path = Path(name)
    is_onnx = path.suffix.lower() == ".onnx"
    if is_onnx and not path.is_file():
        raise InputError(f"There is no file {path}: give the path of an ONNX file.")
    if is_onnx:
        return {"name": "onnx", "path": str(path)}
    # A folder that merely has the name of an encoder is not meant, unless it is written as a path.
    is_model = path.is_dir() and (name != path.name or (path / "config.json").is_file())
    return {"name": "huggingface", "path": str(path)} if is_model else {"name": name}
