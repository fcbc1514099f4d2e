"""A run that an earlier fedmcc began and did not finish: this one resumes it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.data import load_dataset
from fedmcc.runs.directory import Run, load_run

pytestmark = pytest.mark.slow  # whole runs or processes

Near = Callable[[Any], Any]

HERE = Path(__file__).parent
ROUNDING = 1e-4  # of a loss: its training multiplies what two kinds of processor round differently
BEFORE = HERE / "interrupted-run"
EXPECTED = json.loads((HERE / "interrupted-run.json").read_text())


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of before, brought to its end: to be read, not changed."""
    path = Path(shutil.copytree(BEFORE, tmp_path_factory.mktemp("golden") / "run"))
    (path / "checkpoints").mkdir(exist_ok=True)  # it was empty: Git keeps no empty folders
    assert _printed("resume", "--no-report", path)
    return load_run(path)


def test_it_was_interrupted_amid_a_stage() -> None:
    before = load_run(BEFORE)
    last = before.committed_rows()[-1]
    following = EXPECTED["rows"][len(before.committed_rows())]
    assert not before.finished
    assert following["stage"] == last["stage"]


def test_a_resumed_run_has_the_rows_of_one_that_was_not_interrupted(resumed: Run, near: Near) -> None:
    left_out = {"seconds", "loss"}
    rows, expected = (
        [{key: value for key, value in row.items() if key not in left_out} for row in given]
        for given in (resumed.rows(), EXPECTED["rows"])
    )
    assert rows == near(expected)
    losses, expected_losses = ([row["loss"] for row in given] for given in (resumed.rows(), EXPECTED["rows"]))
    assert losses == [loss and pytest.approx(loss, rel=ROUNDING) for loss in expected_losses]


def test_a_resumed_run_has_the_scores_of_one_that_was_not_interrupted(resumed: Run, near: Near) -> None:
    assert resumed.read_json("scores.json") == near(EXPECTED["scores"])


def test_resuming_leaves_every_byte_of_earlier_rounds(resumed: Run) -> None:
    count = len(load_run(BEFORE).committed_rows())
    earlier = (BEFORE / "metrics.jsonl").read_bytes().splitlines()[:count]
    assert count > 0
    assert resumed.metrics_file.read_bytes().splitlines()[:count] == earlier
    for name in ("config.toml", "partition.npz", "environment.json"):
        assert (resumed.path / name).read_bytes() == (BEFORE / name).read_bytes()


def test_its_network_predicts_the_clusters_of_its_own_images(resumed: Run, tmp_path: Path) -> None:
    for number, pixels in enumerate(load_dataset("digits", limit=60).images):
        Image.fromarray(pixels[0]).save(tmp_path / f"{number:02}.png")
    assigned = [line.split(",")[1] for line in resumed.assignments_file.read_text().splitlines()]
    printed = _printed("predict", resumed.path, tmp_path)
    assert [line.split(",")[1] for line in printed.splitlines()] == assigned


def _printed(*words: object) -> str:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout
