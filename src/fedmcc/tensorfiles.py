"""States as safetensors: in bytes for pipes, in files that are whole or absent and checked when read."""

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open

from fedmcc.errors import InputError
from fedmcc.files import write_atomically
from fedmcc.states import State


def to_bytes(state: State, metadata: Mapping[str, str] | None = None) -> bytes:
    """A state in the bytes of a safetensors file."""
    contiguous = {name: value.contiguous() for name, value in state.items()}
    # An empty dictionary of metadata beside no tensors would make a file that cannot be read.
    return safetensors.torch.save(contiguous, dict(metadata) if metadata else None)


def from_bytes(content: bytes) -> State:
    """Undoes `to_bytes`."""
    return safetensors.torch.load(content)


def save_state(path: Path, state: State, metadata: Mapping[str, str] | None = None) -> None:
    """A state as a safetensors file."""
    write_atomically(path, _sorted(to_bytes(state, metadata)))


def _sorted(content: bytes) -> bytes:
    """The same file with its metadata in order, which safetensors leaves to chance."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + text.ljust(end - 8) + content[end:]


def load_state(path: Path) -> State:
    """A state from a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def load_metadata(path: Path) -> dict[str, str]:
    """The words beside the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def load_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file, without reading the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"There is no checkpoint at {path}: let the run finish or give another.")
    return InputError(f"{path} is damaged or no safetensors file ({error}): restore it from a copy.")
