"""States as safetensors: in bytes for pipes, in files that are whole or absent and checked when read."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedmcc.errors import InputError
from fedmcc.numerics.state_dicts import State
from fedmcc.storage.atomic_files import flush_folder, write_atomically, write_flushed

DTYPE_NAMES = {  # as safetensors calls and orders them
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPE_ORDER = {kind: rank for rank, kind in enumerate(DTYPE_NAMES)}


def encoded_chunks(state: State, metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """A safetensors file: its header, then the numbers of each tensor.

    The same bytes as the library's, with fewer copies of them, and with the metadata in order.
    """
    order = sorted(state, key=lambda name: (DTYPE_ORDER[state[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in order:
        value, start = state[name], end
        end += value.numel() * value.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield _numbers(state[name].detach().cpu())


def _numbers(value: Tensor) -> memoryview:
    """What a tensor holds, row after row; NumPy has no bfloat16, but integers of its size."""
    whole = value.contiguous()
    return (whole.view(torch.int16) if whole.dtype == torch.bfloat16 else whole).numpy().data


def to_bytes(state: State) -> bytes:
    """A state in the bytes of a safetensors file."""
    return b"".join(encoded_chunks(state))


def from_bytes(content: bytes) -> State:
    """Undoes `to_bytes`."""
    return safetensors.torch.load(content)


def save_state(path: Path, state: State, metadata: Mapping[str, str] | None = None) -> None:
    """A state as a safetensors file."""
    write_atomically(path, encoded_chunks(state, metadata))


def save_states(folder: Path, states: Iterable[tuple[str, State]]) -> None:
    """States as files of these names, one after the other; all are on disk when it returns."""
    for name, state in states:
        write_flushed(folder / name, encoded_chunks(state))
    flush_folder(folder)


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
