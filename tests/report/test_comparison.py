"""Runs that differ only in their seed are one group, with the mean and deviation of their scores."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmcc.report.build import write_report
from fedmcc.report.comparison import compare, overlaid, summarise
from fedmcc.report.run_facts import read_run
from fedmcc.report.run_groups import differences, group_runs
from fedmcc.runs.directory import Run

Written = Callable[..., Run]
ACCURACIES = (0.5, 0.75, 0.875)


@pytest.fixture
def runs(written: Written) -> list[Run]:
    """Three seeds of one method, two of them with other threads, and one run of another method."""
    same = [
        written(f"run{seed}", seed=seed, acc=acc, threads=1 + seed // 2)
        for seed, acc in enumerate(ACCURACIES)
    ]
    return [*same, written("other", method="fedmcc")]


def test_seeds_are_grouped_and_methods_are_not(runs: list[Run]) -> None:
    groups = group_runs([read_run(run.path) for run in runs])
    assert [(group.name, len(group.runs)) for group in groups] == [("mcc", 3), ("fedmcc", 1)]
    assert differences(groups) == [{"key": "method.name", "values": ["mcc", "fedmcc"]}]


def test_scores_are_means_with_their_deviation(runs: list[Run]) -> None:
    several, one = (summarise(group) for group in group_runs([read_run(run.path) for run in runs]))
    assert several["scores"]["acc"] == pytest.approx((np.mean(ACCURACIES), np.std(ACCURACIES, ddof=1)))
    assert one["scores"]["acc"] == (0.5, None)


def _evaluated(run: Run, *values: float) -> None:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    run.write_json("evaluation.json", {"linear": {"acc": _score(values, spread)}})


def _score(values: tuple[float, ...], spread: float) -> dict[str, object]:
    return {"mean": float(np.mean(values)), "std": spread, "values": [*values], "split": "all", "images": 4}


def test_protocol_scores_are_means_over_runs_or_over_the_seeds_of_a_single_run(runs: list[Run]) -> None:
    for run, value in zip(runs[:2], (0.5, 0.75), strict=True):
        _evaluated(run, value)
    _evaluated(runs[3], 0.25, 0.375, 0.5)
    read_runs = [read_run(run.path) for run in runs]
    several, one = (summarise(group)["evaluation"]["linear acc"] for group in group_runs(read_runs))
    assert several == pytest.approx((0.625, np.std([0.5, 0.75], ddof=1)))
    assert one == pytest.approx((0.375, 0.125))
    page = compare(read_runs)
    assert "linear ACC" in page
    assert re.search(r"0\.625 .{0,30}± 0\.177.*0\.375 .{0,30}± 0\.125", page, re.DOTALL)


def test_a_protocol_of_one_seed_has_no_deviation(written: Written) -> None:
    run = written()
    _evaluated(run, 0.5)
    (group,) = group_runs([read_run(run.path)])
    assert summarise(group)["evaluation"] == {"linear acc": (0.5, None)}
    assert 'id="evaluation"' not in compare([read_run(written("other").path)])


def test_curves_are_overlaid_and_losses_of_stages_not_joined(runs: list[Run]) -> None:
    groups = group_runs([read_run(run.path) for run in runs])
    lines = [line for line in overlaid(groups, "loss")["data"] if "fill" not in line]
    assert [(line["name"], line["x"]) for line in lines] == [
        (name, x) for name in ("mcc", "fedmcc") for x in ([1, 2], [3])
    ]
    (mean,) = (line["y"] for line in overlaid(groups[:1], "acc")["data"] if "fill" not in line)
    assert mean == pytest.approx([np.mean(ACCURACIES) + 0.01], abs=1e-5)


def test_runs_that_are_all_the_same_still_have_names(written: Written) -> None:
    (group,) = group_runs([read_run(written(f"run{seed}", seed=seed).path) for seed in range(2)])
    assert group.name == "run0"


def test_unfinished_runs_are_compared_too(written: Written) -> None:
    run = written()
    run.scores_file.unlink()
    page = compare([read_run(run.path), read_run(written("other", method="fedmcc").path)])
    assert "not yet" in page


def test_configurations_share_neither_a_name_nor_a_legend_entry(written: Written) -> None:
    runs = [written("other", method="fedmcc"), *(written(f"rounds{rounds}") for rounds in (2, 4))]
    for run, rounds in zip(runs[1:], (2, 4), strict=True):
        text = run.config_file.read_text()
        run.config_file.write_text(text.replace("[method]", f"[method]\nrounds = {rounds}"))
    groups = group_runs([read_run(run.path) for run in runs])
    assert [group.name for group in groups] == ["fedmcc", "mcc, rounds 2", "mcc, rounds 4"]
    assert len({line["legendgroup"] for line in overlaid(groups, "acc")["data"]}) == 3


def test_names_that_are_shortened_in_a_legend_still_differ(written: Written) -> None:
    names = [f"{'long' * 5}-{middle}-{'long' * 5}" for middle in "ab"]
    groups = group_runs([read_run(written(name, method=name).path) for name in names])
    shown = {line["name"] for line in overlaid(groups, "acc")["data"]}
    assert len(shown) == 2
    assert max(map(len, shown)) < len(names[0])


def test_groups_whose_options_have_equal_names_are_named_by_their_runs(written: Written) -> None:
    runs = [written(name) for name in ("one", "two")]
    for run, section in zip(runs, ("method", "partition"), strict=True):  # the same last word
        text = run.config_file.read_text()
        run.config_file.write_text(text.replace(f"[{section}]", f"[{section}]\nwidth = 2"))
    assert [group.name for group in group_runs([read_run(run.path) for run in runs])] == [
        "width 2, one",
        "width 2, two",
    ]


def test_a_mean_has_the_number_of_its_runs(runs: list[Run]) -> None:
    runs[2].scores_file.unlink()
    _evaluated(runs[0], 0.5)
    page = compare([read_run(run.path) for run in runs])
    counts = re.findall(r"</i>mcc</td><td class=\"number\">([^<]+)</td>", page)
    assert counts == ["2 of 3", "1 of 3"]  # with scores, and with the scores of a protocol
    assert re.search(r"0\.625 .{0,30}± 0\.177", page)


def test_a_score_of_fewer_runs_is_marked(runs: list[Run]) -> None:
    scores = json.loads(runs[0].scores_file.read_text())
    runs[0].scores_file.write_text(json.dumps(scores | {"knn": 0.875}))
    page = compare([read_run(run.path) for run in runs])
    assert '0.875 <span class="spread">(1 run)</span>' in page


def test_a_run_given_twice_counts_once(runs: list[Run], tmp_path: Path) -> None:
    twice = runs[0].path / ".." / runs[0].path.name
    page = write_report([runs[0].path, twice, runs[1].path], tmp_path / "page.html").read_text()
    assert "2 runs compared" in page


@pytest.mark.parametrize(("name", "groups"), [("mnist", 1), ("folder", 2)])
def test_the_root_distinguishes_only_data_sets_that_it_chooses(
    written: Written, name: str, groups: int
) -> None:
    runs = [written(f"run{seed}", seed=seed) for seed in range(2)]
    for run in runs:
        text = run.config_file.read_text().replace('"digits"', f'"{name}"\nroot = "/data/{run.path.name}"')
        run.config_file.write_text(text)
    assert len(group_runs([read_run(run.path) for run in runs])) == groups
