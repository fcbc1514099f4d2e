"""How a process is made ready to train, and what only some devices gain from."""

import ctypes
import logging
import os
from typing import Literal

import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.networks.momentum import Branch, Network

log = logging.getLogger(__name__)

Precision = Literal["auto", "float32", "bfloat16"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT = 2**30  # bytes; free memory beyond it goes back to the system
LARGE = 2**25  # bytes; a larger block comes from the system alone, or blocks would be cut to pieces


def set_up_torch(threads: int) -> None:
    """So many threads, the same bits whenever something is repeated, and memory that is asked for once."""
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let glibc keep what tensors free for the tensors of the next step; whether it does.

    Left alone it hands large blocks back and gets them anew, page by page, at every step: up to a quarter
    of the time. Nothing is changed for other C libraries, nor for who set glibc's own variables.
    """
    chosen = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if os.name != "posix" or chosen:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, LARGE) and library.mallopt(M_TRIM_THRESHOLD, KEPT))


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """The precision for a device: bfloat16 where its matrix units have it, float32 on CPUs.

    float16 is not offered: its narrow range needs scaled gradients, which bfloat16 does without.
    """
    able = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_bf16_supported(False))
    if precision == "auto":
        return "bfloat16" if able and device.type == "cuda" else "float32"
    if precision == "bfloat16" and not able:
        raise InputError(f"training.precision is bfloat16, which {device} does not have: set it to float32.")
    return precision


def lower_precision(precision: Precision) -> torch.dtype | None:
    """What autocast is told; None: nothing, all is float32."""
    return torch.bfloat16 if precision == "bfloat16" else None


def compile_encoders(net: Network, shape: tuple[int, int, int]) -> None:
    """Compile the encoders of all branches in place, or say in a sentence why they stay as they are."""
    encoders = [branch.encoder for branch in net.children() if isinstance(branch, Branch)]
    for encoder in encoders:
        encoder.compile()
    try:
        _try_out(net.online.encoder, shape)
    except Exception as error:  # whatever the compiler, or the lack of one, may raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        log.warning("training.compile has no effect, torch.compile fails here: %.200s", reason[0])
        for encoder in encoders:
            encoder._compiled_call_impl = None  # as before `compile`


def _try_out(encoder: nn.Module, shape: tuple[int, int, int]) -> None:
    """A pass in inference mode, which changes nothing."""
    device, training = next(encoder.parameters()).device, encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            encoder(torch.zeros((2, *shape), device=device))
    finally:
        encoder.train(training)
