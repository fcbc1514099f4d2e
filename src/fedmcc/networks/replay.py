"""What carries no gradient is computed in the first of two passes and remembered for the second.

Training in one pass, nothing is remembered: `without_gradient` is then `torch.no_grad`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from fedmcc.numerics.randomness import GlobalRandomState

Tensors = tuple[Tensor, ...]


def without_gradient(compute: Callable[[], Tensors]) -> Tensors:
    """The tensors of `compute`, such as a target network's outputs, a row per image.

    Of a chunk that passes twice they are computed once, random numbers and running statistics included.
    """
    tape = _TAPE.get()
    if tape is not None and tape.replaying:
        return tape.next()
    with torch.no_grad():
        found = compute()
    if tape is not None:
        tape.keep(found)
    return found


class Tape:
    """What one chunk computed without gradient, in order, and the random state it began with."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.replaying = False
        self._start = GlobalRandomState.of(device)
        self._kept: list[tuple[Tensors, GlobalRandomState]] = []
        self._position = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The first pass."""
        with self._active():
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        """The second pass: the same random numbers, and what was kept instead of what would be computed."""
        self.replaying, self._position = True, 0
        self._start.restore()
        with self._active():
            yield

    def keep(self, tensors: Tensors) -> None:
        """Remember these, and where the random numbers were after them."""
        self._kept.append((tensors, GlobalRandomState.of(self.device)))

    def next(self) -> Tensors:
        """What was kept at this place of the first pass."""
        tensors, state = self._kept[self._position]
        self._position += 1
        state.restore()
        return tensors

    def share(self, own: Sequence[Tensor], stored: Sequence[Tensor]) -> None:
        """Where something kept is stored elsewhere as well, keep that instead of a copy."""
        places = {id(tensor): place for tensor, place in zip(own, stored, strict=True)}
        self._kept = [
            (tuple(places.get(id(tensor), tensor) for tensor in tensors), state)
            for tensors, state in self._kept
        ]

    @contextmanager
    def _active(self) -> Iterator[None]:
        token = _TAPE.set(self)
        try:
            yield
        finally:
            _TAPE.reset(token)


_TAPE: ContextVar[Tape | None] = ContextVar("tape", default=None)
