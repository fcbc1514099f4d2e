"""What a page says of sites, without any drawing."""

from collections.abc import Callable

from fedmcc.report.page import _people, _refusals
from fedmcc.report.reading import read
from fedmcc.runs import Run


def test_sites_have_their_names_and_those_who_dropped_out_their_reasons(written: Callable[..., Run]) -> None:
    run = written()
    (run.path / "partition.npz").unlink()  # a server does not know who holds what
    told = {"sites": {"0": "north", "1": "south", "2": "west"}, "reasons": {"2": "its connection was lost."}}
    row = {"stage": "second", "round": 2, "loss": 1.0, "seconds": 1.0, "participants": [0, 1]}
    run.log(row | {"refused": [], "dropped": [2], "bytes": {}, "bytes_down": 0, "bytes_up": 0, **told})
    facts = read(run.path)
    assert [(found["client"], found["reason"]) for found in _refusals(facts)] == [
        ("west", "Its connection was lost.")
    ]
    assert [(site["name"], site["dropped"]) for site in _people(facts)] == [
        ("north", 0),
        ("south", 0),
        ("west", 1),
    ]
