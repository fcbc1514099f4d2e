"""What some devices gain from and others do not: lower precision, compiled encoders."""

import logging
from typing import Literal

import torch
from torch import nn

from fedmcc.errors import InputError
from fedmcc.networks.momentum import Branch, Network

log = logging.getLogger(__name__)

Precision = Literal["auto", "float32", "bfloat16"]


def settled_precision(precision: Precision, device: torch.device) -> Precision:
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
