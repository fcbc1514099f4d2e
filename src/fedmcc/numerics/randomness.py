"""Randomness as an argument: generators derived from a seed and the place where they are used.

Layers that draw while they run use torch's own generators, whose state can be kept and restored.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch


def derive(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one place of use, such as (seed, "train", client, stage, round)."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in place]
    sequence = np.random.SeedSequence([seed, *words, 1])  # the 1 keeps trailing zeros apart
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *place: int | str) -> torch.Generator:
    """A CPU generator for one place of use; its numbers do not depend on what ran before."""
    return torch.Generator().manual_seed(derive(seed, *place))


@dataclass(frozen=True, eq=False)
class GlobalRandomState:
    """Where the generators are from which layers such as dropout draw: the CPU's and a device's."""

    device: torch.device
    cpu: torch.Tensor
    own: torch.Tensor | None  # the device's, if it is not the CPU

    @classmethod
    def of(cls, device: torch.device) -> "GlobalRandomState":
        """The state now."""
        own = None
        if device.type != "cpu":
            own = torch.get_device_module(device).get_rng_state(*_which(device))
        return cls(device, torch.get_rng_state(), own)

    def restore(self) -> None:
        """Go back to it."""
        torch.set_rng_state(self.cpu)
        if self.own is not None:
            torch.get_device_module(self.device).set_rng_state(self.own, *_which(self.device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    """How a kind of device is asked for its generator; there is only one MPS device."""
    return () if device.type == "mps" else (device,)
