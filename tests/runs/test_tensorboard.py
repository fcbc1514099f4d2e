"""TensorBoard reads the recorded rounds, and no event is lost."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedmcc.errors import InputError
from fedmcc.runs.experiment import Finished, Scored
from fedmcc.runs.tensorboard import record_rounds, require_tensorboard


def scored(stage: str, number: int, **more: Any) -> Scored:
    row = {
        "stage": stage,
        "round": number,
        "loss": 2.0 / number,
        "seconds": 1.0,
        "bytes_down": 8,
        "bytes_up": 4,
    }
    return Scored({**row, "participants": [0, 2], "refused": [], "dropped": [1], **more}, 2)


EVENTS = [scored("one", 1), scored("one", 2, acc=0.5), scored("two", 1, loss=None, acc=0.75), Finished({})]


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(item.step, item.value) for item in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def test_rounds_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    assert list(record_rounds(EVENTS, tmp_path)) == EVENTS
    scalars = read(tmp_path)
    assert scalars["loss/one"] == [(1, 2.0), (2, 1.0)]
    assert scalars["scores/acc"] == [(2, 0.5), (3, 0.75)]
    assert scalars["clients/participants"] == [(1, 2.0), (2, 2.0), (3, 2.0)]
    assert scalars["cost/bytes_up"][0] == (1, 4.0)
    assert "loss/two" not in scalars


def test_a_resumed_run_continues_the_count(tmp_path: Path) -> None:
    list(record_rounds(EVENTS[:2], tmp_path))
    list(record_rounds(EVENTS[2:], tmp_path, done=2))
    assert read(tmp_path)["scores/acc"] == [(2, 0.5), (3, 0.75)]


def test_without_tensorboard_an_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install \'fedmcc\[tensorboard\]\'"):
        require_tensorboard()
