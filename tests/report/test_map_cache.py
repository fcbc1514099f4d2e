"""The cached map of a report is used for the same network only."""

from collections.abc import Callable

import numpy as np
import pytest

from fedmcc.report.map_cache import FILE, ImageMap, load_map, save_map
from fedmcc.runs.directory import Run

IMAGE_MAP = ImageMap(np.array([0, 2]), np.ones((2, 2), np.float32), np.zeros(4, np.float32))


@pytest.fixture
def run(written: Callable[..., Run]) -> Run:
    run = written()
    run.model_file.write_bytes(b"a network")
    save_map(run, IMAGE_MAP)
    return run


def test_a_cached_map_is_read_back(run: Run) -> None:
    loaded = load_map(run)
    assert loaded is not None
    assert np.array_equal(loaded.rows, IMAGE_MAP.rows)
    assert np.array_equal(loaded.points, IMAGE_MAP.points)
    assert np.array_equal(loaded.typicality, IMAGE_MAP.typicality)


def test_the_map_of_another_network_is_not_used(run: Run) -> None:
    run.model_file.write_bytes(b"another network")
    assert load_map(run) is None


def test_a_damaged_file_is_not_used(run: Run) -> None:
    path = run.path / FILE
    path.write_bytes(path.read_bytes()[:40])
    assert load_map(run) is None


def test_the_map_of_an_unfinished_run_is_not_cached(written: Callable[..., Run]) -> None:
    run = written("unfinished")
    save_map(run, IMAGE_MAP)
    assert not (run.path / FILE).exists()


def test_a_run_that_cannot_be_written_to_has_no_cache(written: Callable[..., Run]) -> None:
    run = written("read-only")
    run.model_file.write_bytes(b"a network")
    (run.path / "cache").write_text("no folder can be made here")
    save_map(run, IMAGE_MAP)
    assert load_map(run) is None
