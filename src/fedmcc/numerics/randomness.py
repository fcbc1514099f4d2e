"""Random generators derived from a seed and the place where they are used, passed as arguments.

Layers such as dropout draw from torch's global generators, whose state can be saved and restored here.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch


def derive(seed: int, *place: int | str) -> int:
    """Derive a 63-bit seed for one place of use, such as (seed, "train", client, stage, round)."""
    numbers = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in place]
    # Without the final 1, a trailing zero would not change the seed.
    sequence = np.random.SeedSequence([seed, *numbers, 1])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *place: int | str) -> torch.Generator:
    """Create a CPU generator for one place of use; its numbers do not depend on what ran before."""
    return torch.Generator().manual_seed(derive(seed, *place))


@dataclass(frozen=True, eq=False)
class GlobalRandomState:
    """State of torch's global generators (CPU and one device), from which layers such as dropout draw."""

    device: torch.device
    cpu: torch.Tensor
    accelerator: torch.Tensor | None  # None: the device is the CPU

    @classmethod
    def of(cls, device: torch.device) -> "GlobalRandomState":
        """Save the current state."""
        accelerator = None
        if device.type != "cpu":
            accelerator = torch.get_device_module(device).get_rng_state(*_device_arguments(device))
        return cls(device, torch.get_rng_state(), accelerator)

    def restore(self) -> None:
        """Set the generators to the saved state."""
        torch.set_rng_state(self.cpu)
        if self.accelerator is not None:
            module = torch.get_device_module(self.device)
            module.set_rng_state(self.accelerator, *_device_arguments(self.device))


def _device_arguments(device: torch.device) -> tuple[torch.device, ...]:
    """Arguments that select the device's generator; MPS has a single device and takes none."""
    return () if device.type == "mps" else (device,)
