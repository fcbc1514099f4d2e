"""States in the safetensors format, as bytes and as files that are written atomically."""

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

DTYPE_NAMES = {  # names and order as in the safetensors library
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
DTYPE_ORDER = {dtype: place for place, dtype in enumerate(DTYPE_NAMES)}


def encoded_chunks(state: State, metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Encode a state as a safetensors file in chunks: the header, then the data of each tensor.

    The bytes are those of the safetensors library, with fewer copies in memory and with sorted metadata.
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
        yield _data(state[name].detach().cpu())


def _data(value: Tensor) -> memoryview:
    """The elements of a tensor in row-major order; bfloat16 is viewed as int16, since NumPy lacks it."""
    contiguous = value.contiguous()
    return (contiguous.view(torch.int16) if contiguous.dtype == torch.bfloat16 else contiguous).numpy().data


def to_bytes(state: State) -> bytes:
    """Encode a state as the bytes of a safetensors file."""
    return b"".join(encoded_chunks(state))


def from_bytes(content: bytes) -> State:
    """Decode a state from the bytes of a safetensors file."""
    return safetensors.torch.load(content)  # a header in JSON and raw numbers: no pickle is read


def save_state(path: Path, state: State, metadata: Mapping[str, str] | None = None) -> None:
    """Write a state to a safetensors file."""
    write_atomically(path, encoded_chunks(state, metadata))


def save_states(folder: Path, states: Iterable[tuple[str, State]]) -> None:
    """Write each state to the file of its name, one after the other, and flush all of them."""
    for name, state in states:
        write_flushed(folder / name, encoded_chunks(state))
    flush_folder(folder)


def load_state(path: Path) -> State:
    """Read a state from a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def load_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def load_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of each tensor in a safetensors file without reading the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            f"There is no checkpoint at {path}: let the run finish, or choose another checkpoint."
        )
    return InputError(f"{path} is damaged or not a safetensors file ({error}): restore it from a backup.")
