"""The time that `fedmcc cluster` is given, and what it prints about outliers."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from fedmcc.cli.cluster import _judge, parse_time
from fedmcc.errors import InputError
from fedmcc.evaluation.geometry import fit_geometry


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1m30s", 90), ("1h 30m", 5400), ("1h5s", 3605)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0m", "-3m", "soon", "10 d", "30s1m", "1m1m", "1..5h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--time is"):
        parse_time(text)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (40, "There are too few images to mark outliers: 99 are needed."),
        (98, "There are too few images to mark outliers: 99 are needed."),
        (99, "0 are outliers, at a limit that 1% of ordinary images exceed."),
    ],
)
def test_too_few_images_for_outliers_are_not_reported_as_no_outliers(
    images: int, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).standard_normal((images, 3)).astype(np.float32)
    geometry = fit_geometry(rows, np.zeros(images, np.int64), 1)
    table = Mock(judgement=Mock(outlier=np.zeros(images, bool)))
    monkeypatch.setattr("fedmcc.runs.clusters.rewrite_table", Mock(return_value=table))
    monkeypatch.setattr("fedmcc.runs.clusters.load_geometry", Mock(return_value=geometry))
    monkeypatch.setattr("fedmcc.terminal.output.say", print)
    _judge(Mock(assignments_file=Path("run/assignments.csv")))
    printed = capsys.readouterr().out
    assert printed == f"run/assignments.csv has the cluster of every image. {sentence}\n"
