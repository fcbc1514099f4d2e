"""Run directories written by hand, without any training."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmcc.runs.directory import Run, create_run

CONFIG = """
clusters = 2
seed = {seed}
threads = {threads}

[data]
name = "digits"

[method]
name = "{method}"

[partition]
clients = 2
"""
Written = Callable[..., Run]


def row(stage: str, number: int, **more: Any) -> dict[str, Any]:
    """A row of metrics."""
    traffic = {"bytes_down": 10, "bytes_up": 20, "bytes": {"0": [5, 10], "1": [5, 10]}}
    clients = {"participants": [0, 1], "refused": [], "dropped": []}
    return {
        "stage": stage,
        "round": number,
        "loss": 1.0 / number,
        "seconds": 1.5,
        **traffic,
        **clients,
        **more,
    }


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a finished run of two stages; keyword arguments change it."""

    def write(name: str = "run", seed: int = 0, method: str = "mcc", acc: float = 0.5, **more: Any) -> Run:
        text = CONFIG.format(seed=seed, method=method, threads=more.get("threads", 1))
        run = create_run(tmp_path / name, text, {"fedmcc": "0", "started": "2024-02-03T04:05:06+00:00"})
        for stage, number in (("first", 1), ("first", 2), ("second", 1)):
            run.log(row(stage, number, **({"acc": acc + number / 100} if stage == "second" else {})))
        run.assignments_file.write_text(
            "image,cluster,confidence,label\na,0,0.9000,x\nb,0,0.8000,x\nc,1,0.7000,y\nd,1,0.6000,x\n"
        )
        buffer = io.BytesIO()
        rows = {"rows_0": np.array([0, 2]), "rows_1": np.array([1, 3])}
        np.savez_compressed(buffer, clients=np.array(["0", "1"]), **rows)
        (run.path / "partition.npz").write_bytes(buffer.getvalue())
        scores = {"head": {"acc": acc, "nmi": acc, "ari": acc}, "features": {}, "pixels": {}}
        content = {
            "images": 4,
            "scores": scores,
            "knn": None,
            "label_free": {"confidence": 0.75},
            "warning": None,
        }
        run.scores_file.write_text(json.dumps(content))
        return run

    return write
