import pytest

from fedmcc.training.timing import measuring, start_phase, timed


class FakeTime:
    """A time source that the test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    source = FakeTime()
    monkeypatch.setattr("fedmcc.training.timing.perf_counter", source)
    return source


def test_time_belongs_to_the_innermost_range(fake_time: FakeTime) -> None:
    with measuring() as clock, timed("outer"):
        fake_time.advance(1)
        with timed("inner"):
            fake_time.advance(2)
        fake_time.advance(4)
    assert clock.parts() == {"rest": 0, "outer": 5, "inner": 2}


def test_parts_of_all_phases_add_up_to_the_wall_clock(fake_time: FakeTime) -> None:
    with measuring() as clock:
        fake_time.advance(8)
        for number in range(2):
            start_phase(f"phase {number}")
            with timed("work"):
                fake_time.advance(1)
            fake_time.advance(2)
    assert sum(clock.parts().values()) == clock.total == fake_time.now - 100
    assert clock.seconds["before", "rest"] == 8
    assert clock.seconds["phase 1", "work"] == 1


def test_an_error_in_a_range_closes_it(fake_time: FakeTime) -> None:
    with measuring() as clock:
        with pytest.raises(ValueError, match="no"), timed("work"):
            raise ValueError("no")
        fake_time.advance(1)
    assert clock.parts() == {"rest": 1, "work": 0}


def test_an_accelerator_is_waited_for_at_both_ends_of_a_range() -> None:
    waits: list[str] = []
    with measuring(lambda: waits.append("waited")):
        with timed("work"):
            assert len(waits) == 1
        assert len(waits) == 2


def test_nothing_is_measured_without_a_clock() -> None:
    with measuring() as clock:
        pass
    before = dict(clock.seconds)
    start_phase("later")
    with timed("work"):
        pass
    assert clock.seconds == before
    assert timed("one") is timed("another")


def test_only_one_clock_measures() -> None:
    with measuring(), pytest.raises(RuntimeError, match="already"), measuring():
        pass
