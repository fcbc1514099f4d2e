"""The losses of five rounds, as `losses.json` keeps them.

A change that keeps behaviour leaves them alone. One that is meant to change them runs
`python tests/golden/regenerate.py` and says why in its description.
"""

import json
import tempfile
from pathlib import Path

from fedmcc import config
from fedmcc.runs import experiment

FILE = Path(__file__).with_name("losses.json")
TINY = {
    "seed": 1,
    "threads": 1,
    "device": "cpu",
    "data": {"name": "digits", "limit": 256},
    "views": {"size": 16},
    "encoder": {"width": 4},
    "training": {"batch_size": 64, "learning_rate": 1e-3},
    "evaluation": {"every": 5},
}


def losses(method: str) -> list[float]:
    """The mean loss of each of five rounds."""
    options = {"name": method, "rounds": 5, "hidden": 32, "projections": 16}
    with tempfile.TemporaryDirectory() as folder:
        run = experiment.run(config.parse({**TINY, "method": options}), Path(folder) / "run")
        return [row["loss"] for row in run.rows()]


if __name__ == "__main__":
    how = "Written by `python tests/golden/regenerate.py`; compared to a relative 1e-5."
    content = {"how": how, "losses": {method: losses(method) for method in ("cc", "mcc")}}
    FILE.write_text(json.dumps(content, indent=2) + "\n")
