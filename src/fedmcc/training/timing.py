"""Where time goes: named ranges that cost next to nothing unless somebody measures.

Time belongs to the innermost range it passes in, so that all parts add up to the wall clock.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter

REST = "rest"
BEFORE_STAGES, AFTER_STAGES = "before", "after"  # the chapters around the stages


class Clock:
    """Seconds by chapter, such as a stage, and part, such as its views."""

    def __init__(self, settle: Callable[[], object] | None = None) -> None:
        self.seconds: dict[tuple[str, str], float] = {}
        self.chapter = BEFORE_STAGES
        self._settle = settle  # waits for an accelerator, whose work goes on beside ours
        self._open = [REST]
        self._since = perf_counter()

    def mark(self) -> None:
        """Charge the time since the last mark to the range that is open."""
        if self._settle is not None:
            self._settle()
        now, key = perf_counter(), (self.chapter, self._open[-1])
        self.seconds[key] = self.seconds.get(key, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def range(self, part: str) -> Iterator[None]:
        """Time in here belongs to the part, but for ranges within."""
        self.mark()
        self._open.append(part)
        try:
            yield
        finally:
            self.mark()
            self._open.pop()

    @property
    def total(self) -> float:
        """Seconds up to the last mark."""
        return sum(self.seconds.values())

    def parts(self) -> dict[str, float]:
        """Seconds of each part in all chapters."""
        names = dict.fromkeys(part for _, part in self.seconds)
        return {name: sum(s for (_, part), s in self.seconds.items() if part == name) for name in names}


_FREE: AbstractContextManager[None] = nullcontext()
_measuring: list[Clock] = []


@contextmanager
def measuring(settle: Callable[[], object] | None = None) -> Iterator[Clock]:
    """Measure the ranges that this process passes; not one within another."""
    if _measuring:
        raise RuntimeError("Time is being measured already.")
    clock = Clock(settle)
    _measuring.append(clock)
    try:
        yield clock
    finally:
        clock.mark()
        _measuring.clear()


def timed(part: str) -> AbstractContextManager[None]:
    """A range of the clock that is measuring, if one is. No generator may yield in it."""
    return _measuring[0].range(part) if _measuring else _FREE


def start_phase(name: str) -> None:
    """What follows belongs to this chapter."""
    if _measuring:
        _measuring[0].mark()
        _measuring[0].chapter = name
