"""Tensors without gradient are computed in the first of two passes and replayed in the second.

In training with a single pass nothing is recorded, and `without_gradient` is equivalent to `torch.no_grad`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from fedmcc.numerics.randomness import GlobalRandomState

Tensors = tuple[Tensor, ...]


def without_gradient(compute: Callable[[], Tensors]) -> Tensors:
    """Call `compute` without gradient, such as for a target network; its tensors have one row per image.

    For a chunk that is processed twice it is called once, which also draws random numbers and updates running
    statistics only once.
    """
    tape = _TAPE.get()
    if tape is not None and tape.replaying:
        return tape.next()
    with torch.no_grad():
        tensors = compute()
    if tape is not None:
        tape.record(tensors)
    return tensors


class Tape:
    """Tensors that one chunk computed without gradient, in order, and the random state at its start."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.replaying = False
        self._start = GlobalRandomState.of(device)
        self._recorded: list[tuple[Tensors, GlobalRandomState]] = []
        self._position = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Run the first pass and record its tensors."""
        with self._active():
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Run the second pass with the same random numbers and the recorded tensors."""
        self.replaying, self._position = True, 0
        self._start.restore()
        with self._active():
            yield

    def record(self, tensors: Tensors) -> None:
        """Store tensors and the random state after their computation."""
        self._recorded.append((tensors, GlobalRandomState.of(self.device)))

    def next(self) -> Tensors:
        """Return the next recorded tensors and restore the random state after their computation."""
        tensors, state = self._recorded[self._position]
        self._position += 1
        state.restore()
        return tensors

    def replace(self, recorded: Sequence[Tensor], equal: Sequence[Tensor]) -> None:
        """Replace recorded tensors by equal ones that are stored elsewhere, so that memory holds one copy."""
        replacements = {id(tensor): other for tensor, other in zip(recorded, equal, strict=True)}
        self._recorded = [
            (tuple(replacements.get(id(tensor), tensor) for tensor in tensors), state)
            for tensors, state in self._recorded
        ]

    @contextmanager
    def _active(self) -> Iterator[None]:
        token = _TAPE.set(self)
        try:
            yield
        finally:
            _TAPE.reset(token)


_TAPE: ContextVar[Tape | None] = ContextVar("tape", default=None)
