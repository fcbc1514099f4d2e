"""The map can be coloured by the client of each image."""

from collections.abc import Callable

import numpy as np

from fedmcc.report.clusters import describe
from fedmcc.report.map_cache import ImageMap
from fedmcc.report.map_draw import Mode, draw_map
from fedmcc.report.palette import UNLABELLED_COLOUR
from fedmcc.report.run_facts import read_run
from fedmcc.runs.directory import Run


def clients_of(run: Run, rows: list[int]) -> Mode | None:
    """The groups by client on the map of some images."""
    facts = read_run(run.path)
    assert facts.assignments is not None
    points, count = np.zeros((len(rows), 2), np.float32), len(facts.assignments)
    image_map = ImageMap(np.array(rows), points, np.zeros(count, np.float32))
    drawn = draw_map(facts, facts.assignments, describe(facts.assignments, facts.clusters), image_map)
    return next((mode for mode in drawn["modes"] if mode["key"] == "client"), None)


def test_images_are_coloured_by_their_clients(written: Callable[..., Run]) -> None:
    mode = clients_of(written(), [0, 1, 3])
    assert mode is not None
    assert (mode["names"], mode["groups"]) == (["0", "1"], [0, 1, 1])


def test_images_of_no_client_have_a_name_and_a_colour_of_their_own(written: Callable[..., Run]) -> None:
    run = written()
    with run.assignments_file.open("a") as file:
        file.write("e,1,0.5000,x\n")
    mode = clients_of(run, [0, 3, 4])
    assert mode is not None
    assert (mode["names"], mode["groups"]) == (["0", "1", "no client"], [0, 1, 2])
    assert mode["colours"][2] == UNLABELLED_COLOUR


def test_clients_of_other_images_are_not_drawn(written: Callable[..., Run]) -> None:
    """A table that has lost lines does not belong to the partition."""
    run = written()
    lines = run.assignments_file.read_text().splitlines(keepends=True)
    run.assignments_file.write_text("".join(lines[:-1]))
    assert clients_of(run, [0, 1]) is None
