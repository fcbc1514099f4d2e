"""Time measurement by named ranges, which cost almost nothing unless a clock is running.

Time is counted in the innermost range only, so that all parts add up to the wall-clock time.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter

REST = "rest"  # time outside any range
BEFORE_STAGES, AFTER_STAGES = "before", "after"  # the phases around the stages


class Clock:
    """Seconds by phase, such as a stage, and by part, such as its views."""

    def __init__(self, synchronize: Callable[[], object] | None = None) -> None:
        self.seconds: dict[tuple[str, str], float] = {}
        self.phase = BEFORE_STAGES
        self._synchronize = synchronize  # waits for an accelerator, which computes asynchronously
        self._open = [REST]
        self._since = perf_counter()

    def mark(self) -> None:
        """Add the time since the last mark to the innermost open range."""
        if self._synchronize is not None:
            self._synchronize()
        now, key = perf_counter(), (self.phase, self._open[-1])
        self.seconds[key] = self.seconds.get(key, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def range(self, part: str) -> Iterator[None]:
        """Count the time inside the context as this part, except inner ranges."""
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
        """Seconds of each part, summed over all phases."""
        names = dict.fromkeys(part for _, part in self.seconds)
        return {name: sum(s for (_, part), s in self.seconds.items() if part == name) for name in names}


_NO_MEASUREMENT: AbstractContextManager[None] = nullcontext()
_running: list[Clock] = []  # at most one


@contextmanager
def measuring(synchronize: Callable[[], object] | None = None) -> Iterator[Clock]:
    """Run a clock for this process inside the context; contexts cannot be nested."""
    if _running:
        raise RuntimeError("A clock is already running.")
    clock = Clock(synchronize)
    _running.append(clock)
    try:
        yield clock
    finally:
        clock.mark()
        _running.clear()


def timed(part: str) -> AbstractContextManager[None]:
    """A range of the running clock, if there is one; generators must not yield inside it."""
    return _running[0].range(part) if _running else _NO_MEASUREMENT


def start_phase(name: str) -> None:
    """Count the time from now on in this phase."""
    if _running:
        _running[0].mark()
        _running[0].phase = name
