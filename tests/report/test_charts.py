"""Charts have a line for each score that was recorded, and no empty lines."""

from typing import Any

import numpy as np

from fedmcc.report.charts import Stage, cost_charts, find_stages, named_axis, round_charts
from fedmcc.report.heatmaps import clients_and_classes
from fedmcc.report.run_facts import Partition


def row(stage: str, loss: float | None, **more: Any) -> dict[str, Any]:
    row = {"stage": stage, "round": 1, "loss": loss, "seconds": 2.0, "bytes_down": 3_000_000}
    return row | {"bytes_up": 1_000_000, "participants": [0, 1], "refused": [], "dropped": [], **more}


ROWS = [
    row("one", 3.0),
    row("one", 2.0),
    row("two", -1.0, acc=0.5),
    row("two", -2.0, acc=0.75),
    row("three", None),
]


def test_stages_are_counted_over_the_whole_run() -> None:
    assert find_stages(ROWS) == [Stage("one", 1, 2), Stage("two", 3, 4), Stage("three", 5, 5)]


def test_losses_of_different_stages_are_not_joined() -> None:
    lines = round_charts(ROWS)["loss"]["data"]
    assert [(line["name"], line["x"], line["y"]) for line in lines] == [
        ("one", [1, 2], [3.0, 2.0]),
        ("two", [3, 4], [-1.0, -2.0]),
    ]


def test_every_later_stage_begins_at_a_dotted_line() -> None:
    layout = round_charts(ROWS)["loss"]["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [2.5, 4.5]
    assert [note["text"] for note in layout["annotations"]] == ["one", "two", "three"]


def test_stages_are_named_only_where_their_names_do_not_touch() -> None:
    names = ("representation", "separation", "calibration", "whitening", "centroids", "merging")
    rows = [row(name, 1.0) for name in names for _ in range(9 if name == "separation" else 1)]
    for chart in (round_charts(rows)["loss"], cost_charts(rows, federated=False)["bytes"]):
        notes = chart["layout"]["annotations"]
        assert [(note["text"], note["hovertext"]) for note in notes][:2] == [
            ("…", "representation"),
            ("separation", "separation"),
        ]
        assert [note["text"] for note in notes[2:]] == ["…"] * 4
    many = round_charts([row(names[number % 5], 1.0) for number in range(100)])["loss"]["layout"]
    assert many["annotations"] == []


def test_stages_of_one_round_have_a_chart_of_their_losses() -> None:
    lines = round_charts([row("one", 3.0), row("two", 2.0)])["loss"]["data"]
    assert [(line["x"], line["mode"]) for line in lines] == [([1], "lines+markers"), ([2], "lines+markers")]
    assert round_charts([row("one", 1.0, acc=0.5, nmi=0.5)]) == {}


def test_scores_that_were_never_recorded_have_no_chart() -> None:
    assert set(round_charts(ROWS)) == {"loss", "scores"}
    assert set(round_charts(ROWS[:2])) == {"loss"}
    assert set(round_charts([row("one", 1.0, epsilon=0.5 * n) for n in (1, 2)])) == {"loss", "epsilon"}


def test_names_are_not_read_as_markup() -> None:
    (line,) = round_charts([row("<i>", 1.0), row("<i>", 2.0)])["loss"]["data"]
    assert line["name"] == "&lt;i&gt;"


def test_traffic_is_in_megabytes_and_participants_are_counted() -> None:
    rows = [ROWS[0], row("one", 1.0, participants=[0], refused=[{"client": 1, "reason": ""}])]
    charts = cost_charts(rows, federated=True)
    assert [(bar["name"], bar["y"]) for bar in charts["bytes"]["data"]] == [
        ("to clients", [3.0, 3.0]),
        ("from clients", [1.0, 1.0]),
    ]
    counts = {bar["name"]: bar["y"] for bar in charts["participants"]["data"]}
    assert counts == {"took part": [2, 1], "refused": [0, 1]}
    assert "participants" not in cost_charts(rows, federated=False)


def test_names_that_are_shortened_keep_the_ends_that_differ() -> None:
    names = [f"university-hospital-of-zurich-{side}" for side in ("north", "<south>")] + ["b"]
    axis = named_axis(names)
    assert axis["tickvals"] == [0, 1, 2]
    assert axis["ticktext"] == ["university-…zurich-north", "university-…rich-&lt;south&gt;", "b"]


def test_an_axis_with_many_names_labels_some_of_them_at_their_positions() -> None:
    axis = named_axis([f"{number}" for number in range(100)])
    assert axis["tickvals"][:2] == [0, 4]
    assert axis["ticktext"] == [f"{place}" for place in axis["tickvals"]]


def test_a_cell_of_a_table_has_its_full_names() -> None:
    names = tuple(f"pneumonia with a very long finding {number}" for number in "123")
    counts = np.array([[3, 0, 0], [1, 2, 0]])
    chart = clients_and_classes(Partition(("<a>", "7"), (np.arange(3), np.arange(3, 6)), names, counts))
    assert chart is not None
    (cells,) = chart["data"]
    assert cells["customdata"][0][:2] == [["&lt;a&gt;", names[0], 3], ["&lt;a&gt;", names[1], 0]]
    assert cells["customdata"][1][1] == ["client 7", names[1], 2]
    assert (cells["x"], cells["y"]) == ([0, 1, 2], [0, 1])
    assert chart["layout"]["xaxis"]["tickangle"] == -90  # side by side they would be too wide
