"""Parsing of memory sizes, and measurement of memory in use."""

import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedmcc.errors import InputError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def memory_size(text: str, option: str = "engine.memory") -> int:
    """Convert a size such as 500MB or 1.5GB to bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InputError(f"{option} is '{text}': give a size such as 500MB or 2GB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def bytes_in_use(device: torch.device) -> int:
    """Memory that this process uses on the device; on a CPU its resident memory, or 0 if /proc is missing."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 0
    return int(pages.read_text().split()[1]) * 4096


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Peak memory of the tensors created by `work`, in bytes."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    tracker = _AllocationTracker()
    with tracker:
        work()
    return tracker.peak


class _AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Total size of the live storages that operations created; deterministic, unlike resident memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._tracked: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inputs = {id(_storage(leaf)) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(_storage(leaf)) not in inputs | self._tracked:
                self._add(_storage(leaf))
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        self._tracked.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._tracked.discard(key)
        self.current -= size


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
