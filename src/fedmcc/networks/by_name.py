"""Encoders as people name them: a registered name, an ONNX file or a folder of the Hugging Face hub."""

from pathlib import Path
from typing import Any


def encoder_section(name: str) -> dict[str, Any]:
    """The section [encoder] of a configuration for an encoder of this name or at this path."""
    path = Path(name)
    if path.is_file() and path.suffix == ".onnx":
        return {"name": "onnx", "path": str(path)}
    return {"name": "huggingface", "path": str(path)} if path.is_dir() else {"name": name}
