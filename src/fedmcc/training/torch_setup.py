"""Settings of a training process: device, threads, determinism, memory, precision and compilation."""

import ctypes
import logging
import os
from typing import Literal

import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.networks.frozen import FrozenEncoder
from fedmcc.networks.inference import device_of
from fedmcc.networks.momentum import Branch, Network

log = logging.getLogger(__name__)

Precision = Literal["auto", "float32", "bfloat16"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of glibc's malloc.h
MAX_FREE_BYTES = 2**30  # free memory above this is returned to the system
TEST_IMAGES = 16  # of a forward pass that tries an encoder out
MMAP_BYTES = 2**25  # larger blocks are mapped separately, so that the heap is not fragmented


def set_up_torch(threads: int) -> None:
    """Set the number of threads, make computations deterministic, and let freed memory be reused."""
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the tensors of the next step; returns whether it does.

    By default it returns large blocks to the system and maps them again in every step, which costs up to a
    quarter of the time. Nothing changes with other C libraries or if glibc's own variables are set.
    """
    configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if os.name != "posix" or configured:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(
        library.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and library.mallopt(M_TRIM_THRESHOLD, MAX_FREE_BYTES)
    )


def find_device(name: str) -> torch.device:
    """The device of this name; `auto` is the accelerator if there is one, else the CPU."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        raise InputError(f"There is no device '{name}' on this machine: set device to auto or cpu.") from None
    return device


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Resolve "auto" for a device: bfloat16 on CUDA devices that support it, else float32.

    float16 is not offered because its narrow range requires gradient scaling, unlike bfloat16.
    """
    supported = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_bf16_supported(False))
    if precision == "auto":
        return "bfloat16" if supported and device.type == "cuda" else "float32"
    if precision == "bfloat16" and not supported:
        raise InputError(
            f"training.precision is bfloat16, which {device} does not support: set it to float32."
        )
    return precision


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """The data type for autocast; None: no autocast, everything is float32."""
    return torch.bfloat16 if precision == "bfloat16" else None


def compile_encoders(net: Network, shape: tuple[int, int, int]) -> None:
    """Compile the encoders of all branches in place, or log why they cannot be compiled."""
    branches = [branch for branch in net.children() if isinstance(branch, Branch)]
    encoders = [branch.encoder for branch in branches if not isinstance(branch.encoder, FrozenEncoder)]
    if not encoders:
        return
    for encoder in encoders:
        encoder.compile()
    try:
        _test_forward(net.online.encoder, shape)
    except Exception as error:  # the compiler, or its absence, may raise anything
        reason = str(error).strip().splitlines() or [type(error).__name__]
        log.warning("training.compile has no effect because torch.compile failed: %.200s", reason[0])
        for encoder in encoders:
            encoder._compiled_call_impl = None  # undoes `compile`


def _test_forward(encoder: nn.Module, shape: tuple[int, int, int]) -> None:
    """Run a forward pass in inference mode, which changes nothing."""
    device, training = device_of(encoder), encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            encoder(torch.zeros((TEST_IMAGES, *shape), device=device))
    finally:
        encoder.train(training)
