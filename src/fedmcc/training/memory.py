"""Sizes of memory as people write them, and how much of it some work needs."""

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
    """Bytes of a size such as 500MB or 1.5GB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise InputError(f"{option} is '{text}': give a size such as 500MB or 2GB.")
    return int(float(found[1]) * UNITS[found[2].upper()])


def bytes_in_use(device: torch.device) -> int:
    """Bytes that this process has on the device now; on a CPU all that is resident, where the system says."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 0
    return int(pages.read_text().split()[1]) * 4096


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that tensors of `work` take at once, beyond those that were there before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    meter = _Meter()
    with meter:
        work()
    return meter.peak


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operations make, until they are freed: the same number every time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {id(_storage(leaf)) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(_storage(leaf)) not in given | self._known:
                self._add(_storage(leaf))
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        name, size = id(storage), storage.nbytes()
        self._known.add(name)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, name, size)

    def _drop(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.now -= size


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
