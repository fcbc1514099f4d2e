"""The figures are valid SVG and PNG files, and a missing matplotlib is an error with a remedy."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.errors import InputError
from fedmcc.report.figures import _holdings, write_figures
from fedmcc.report.map_cache import ImageMap, save_map
from fedmcc.report.run_facts import Facts, Partition, read_run
from fedmcc.runs.directory import Run
from fedmcc.storage.safetensor_files import save_state

pytestmark = pytest.mark.slow  # takes seconds


@pytest.fixture
def run(written: Callable[..., Run]) -> Run:
    run = written()
    run.model_file.write_bytes(b"a network")
    save_map(run, ImageMap(np.arange(4), np.eye(4, 2, dtype=np.float32), np.zeros(4, np.float32)))
    return run


def test_each_figure_is_a_vector_and_a_pixel_file(run: Run, tmp_path: Path) -> None:
    names, missing = write_figures(run.path, tmp_path / "new" / "figures")
    assert missing == {"holdings": "The images have no labels."}
    assert names == ["accuracy", "loss", "tsne-clusters", "tsne-classes"]
    for name in names:
        drawn = ElementTree.parse(tmp_path / "new" / "figures" / f"{name}.svg")
        assert drawn.getroot().tag.endswith("svg")
        with Image.open(tmp_path / "new" / "figures" / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).min() < 128


def test_without_matplotlib_the_error_says_how_to_install_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'fedmcc\[figures\]'"):
        write_figures(run.path, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_without_the_images_the_other_figures_are_drawn(written: Callable[..., Run], tmp_path: Path) -> None:
    run = written()
    save_state(run.model_file, {})
    config = run.config_file.read_text().replace('name = "digits"', 'name = "folder"\nroot = "/elsewhere"')
    run.config_file.write_text(config)
    result = CliRunner().invoke(app, ["plot", str(run.path), "--out", str(tmp_path / "figures")])
    assert result.exit_code == 0, result.output
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"accuracy", "loss"}
    reason = f"The images of {run.path} cannot be loaded: There is no folder /elsewhere"
    assert f"tsne-clusters and tsne-classes cannot be drawn. {reason}" in result.stderr


@pytest.mark.parametrize("error", [PermissionError("Permission denied"), FloatingPointError("not finite")])
def test_after_any_error_of_the_images_the_other_figures_are_drawn(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("fedmcc.report.figures.load_or_compute_map", Mock(side_effect=error))
    written = write_figures(run.path, tmp_path / "figures")
    assert written.names == ["accuracy", "loss"]
    assert written.missing["tsne-clusters"] == written.missing["tsne-classes"] == str(error)


def test_without_labels_confidence_is_drawn_and_the_reason_for_the_others_is_printed(
    run: Run, tmp_path: Path
) -> None:
    run.metrics_file.write_text(run.metrics_file.read_text().replace('"acc"', '"confidence"'))
    run.assignments_file.write_text(re.sub("[xy]\n", "\n", run.assignments_file.read_text()))
    result = CliRunner().invoke(app, ["plot", str(run.path), "--out", str(tmp_path / "figures")])
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"confidence", "loss", "tsne-clusters"}
    reason = "The figures accuracy, holdings and tsne-classes cannot be drawn. The images have no labels."
    assert reason in result.stderr


def test_a_run_without_scores_and_images_is_refused_with_the_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run.metrics_file.read_text().replace('"acc"', '"other"').replace('"loss"', '"more"')
    run.metrics_file.write_text(rows)
    monkeypatch.setattr("fedmcc.report.figures.load_or_compute_map", Mock(side_effect=InputError("No.")))
    with pytest.raises(InputError, match=r"No figure of .*run can be drawn\. No\."):
        write_figures(run.path, tmp_path / "figures")


@pytest.mark.parametrize("name", ["loss.svg", "tsne-classes.png"])
def test_a_file_that_plot_did_not_write_is_replaced_only_by_force(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("my own")
    argv = ["plot", str(run.path), "--out", str(tmp_path)]
    refused = CliRunner().invoke(app, argv)
    assert refused.exit_code == 2
    assert f"{name} exists and was not written by this command: use --force" in refused.stderr
    assert (tmp_path / name).read_text() == "my own"
    assert not (tmp_path / "accuracy.svg").exists()  # all files are checked before the first is written
    for more in (["--force"], []):  # then all files are those of `plot`
        assert CliRunner().invoke(app, [*argv, *more]).exit_code == 0


def test_a_marked_figure_has_the_resolution_for_print(run: Run, tmp_path: Path) -> None:
    write_figures(run.path, tmp_path)
    with Image.open(tmp_path / "loss.png") as picture:
        assert picture.info["dpi"] == pytest.approx((200, 200), rel=1e-3)
        assert picture.info["Software"] == "fedmcc plot"


def test_a_run_of_one_round_is_drawn_as_a_point(written: Callable[..., Run], tmp_path: Path) -> None:
    run = written()
    run.metrics_file.write_text(run.metrics_file.read_text().splitlines(keepends=True)[-1])
    assert write_figures(run.path, tmp_path).names[:2] == ["accuracy", "loss"]
    drawn = (tmp_path / "loss.svg").read_text()
    assert re.findall(r">(\d\.?\d*)</text>", drawn).count("1") == 1  # one round, and no half ones
    with Image.open(tmp_path / "loss.png") as picture:
        middle = np.asarray(picture.convert("L"))[200:-200, 400:-400]
    assert middle.min() < 160


def test_long_names_neither_touch_nor_leave_the_figure(run: Run, tmp_path: Path) -> None:
    names = [f"Pneumonia with a very long finding name {number}" for number in range(10)]
    lines = [f"{place},{place % 2},0.9000,{names[place % 10]}" for place in range(40)]
    run.assignments_file.write_text("\n".join(["image,cluster,confidence,label", *lines, ""]))
    points = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
    save_map(run, ImageMap(np.arange(40), points, np.zeros(40, np.float32)))
    write_figures(run.path, tmp_path / "figures")
    with Image.open(tmp_path / "figures" / "tsne-classes.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert pixels[:, [0, -1]].min() == 255
    partition = Partition(
        tuple("abcdefghijklmno"), (np.arange(1),) * 15, tuple(names), np.ones((15, 10), np.int64)
    )
    assert_no_overlap(replace(read_run(run.path), partition=partition))


def assert_no_overlap(facts: Facts) -> None:
    """The names of the classes do not overlap."""
    draw, figure = _holdings(facts), Figure(figsize=(6.0, 3.4), layout="constrained")
    assert not isinstance(draw, str)
    draw(axes := figure.add_subplot())
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
