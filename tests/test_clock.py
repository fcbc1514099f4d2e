import time

import pytest

from fedmcc.clock import chapter, measuring, timed


def test_time_belongs_to_the_innermost_range() -> None:
    with measuring() as clock, timed("outer"):
        time.sleep(0.02)
        with timed("inner"):
            time.sleep(0.05)
    parts = clock.parts()
    assert 0.02 <= parts["outer"] < 0.05 <= parts["inner"]


def test_parts_add_up_to_the_wall_clock() -> None:
    start = time.perf_counter()
    with measuring() as clock:
        for number in range(3):
            chapter(f"chapter {number}")
            with timed("work"):
                time.sleep(0.01)
            time.sleep(0.01)
    wall = time.perf_counter() - start
    assert sum(clock.parts().values()) == clock.total == pytest.approx(wall, abs=0.005)
    assert {name for name, _ in clock.seconds} == {"before", "chapter 0", "chapter 1", "chapter 2"}


def test_an_error_in_a_range_closes_it() -> None:
    with measuring() as clock:
        with pytest.raises(ValueError, match="no"), timed("work"):
            raise ValueError("no")
        time.sleep(0.02)
    assert clock.parts()["rest"] >= 0.02 > clock.parts()["work"]


def test_an_accelerator_is_waited_for_at_both_ends_of_a_range() -> None:
    waits: list[str] = []
    with measuring(lambda: waits.append("waited")), timed("work"):
        assert len(waits) == 1
    assert len(waits) == 3


def test_nothing_is_measured_unless_somebody_asks() -> None:
    with measuring() as clock:
        pass
    before = dict(clock.seconds)
    chapter("later")
    with timed("work"):
        pass
    assert clock.seconds == before
    assert timed("one") is timed("another")


def test_only_one_clock_measures() -> None:
    with measuring(), pytest.raises(RuntimeError, match="already"), measuring():
        pass
