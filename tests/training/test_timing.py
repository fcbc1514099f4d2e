import pytest

from fedmcc.training.timing import measuring, start_phase, timed


class Hands:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr("fedmcc.training.timing.perf_counter", made)
    return made


def test_time_belongs_to_the_innermost_range(hands: Hands) -> None:
    with measuring() as clock, timed("outer"):
        hands.move(1)
        with timed("inner"):
            hands.move(2)
        hands.move(4)
    assert clock.parts() == {"rest": 0, "outer": 5, "inner": 2}


def test_parts_of_all_chapters_add_up_to_the_wall_clock(hands: Hands) -> None:
    with measuring() as clock:
        hands.move(8)
        for number in range(2):
            start_phase(f"chapter {number}")
            with timed("work"):
                hands.move(1)
            hands.move(2)
    assert sum(clock.parts().values()) == clock.total == hands.now - 100
    assert clock.seconds["before", "rest"] == 8
    assert clock.seconds["chapter 1", "work"] == 1


def test_an_error_in_a_range_closes_it(hands: Hands) -> None:
    with measuring() as clock:
        with pytest.raises(ValueError, match="no"), timed("work"):
            raise ValueError("no")
        hands.move(1)
    assert clock.parts() == {"rest": 1, "work": 0}


def test_an_accelerator_is_waited_for_at_both_ends_of_a_range() -> None:
    waits: list[str] = []
    with measuring(lambda: waits.append("waited")):
        with timed("work"):
            assert len(waits) == 1
        assert len(waits) == 2


def test_nothing_is_measured_unless_somebody_asks() -> None:
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
