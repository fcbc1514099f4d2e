"""What a report keeps for the next one is used for the same network only."""

from collections.abc import Callable

import numpy as np
import pytest

from fedmcc.report import map_cache
from fedmcc.report.map_cache import Landscape
from fedmcc.runs.directory import Run

SEEN = Landscape(np.array([0, 2]), np.ones((2, 2), np.float32), np.zeros(4, np.float32))


@pytest.fixture
def run(written: Callable[..., Run]) -> Run:
    run = written()
    run.model_file.write_bytes(b"a network")
    map_cache.save(run, SEEN)
    return run


def test_it_is_read_back(run: Run) -> None:
    found = map_cache.load(run)
    assert found is not None
    assert np.array_equal(found.rows, SEEN.rows)
    assert np.array_equal(found.points, SEEN.points)
    assert np.array_equal(found.typicality, SEEN.typicality)


def test_another_network_makes_its_own(run: Run) -> None:
    run.model_file.write_bytes(b"another network")
    assert map_cache.load(run) is None


def test_a_damaged_file_is_not_used(run: Run) -> None:
    path = run.path / map_cache.FILE
    path.write_bytes(path.read_bytes()[:40])
    assert map_cache.load(run) is None


def test_of_an_unfinished_run_nothing_is_kept(written: Callable[..., Run]) -> None:
    run = written("unfinished")
    map_cache.save(run, SEEN)
    assert not (run.path / map_cache.FILE).exists()


def test_a_run_that_cannot_be_written_to_is_looked_at_each_time(written: Callable[..., Run]) -> None:
    run = written("kept")
    run.model_file.write_bytes(b"a network")
    (run.path / "cache").write_text("no folder can be made here")
    map_cache.save(run, SEEN)
    assert map_cache.load(run) is None
