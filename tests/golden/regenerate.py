"""The numbers of small runs, as `losses.json` and `federations.json` keep them.

A change that keeps behaviour leaves them alone. One that is meant to change them runs
`python tests/golden/regenerate.py` and says why in its description. With `--digest` it writes nothing and
prints SHA-256 digests: equal before and after a change on one machine, the change keeps every bit.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch

from fedmcc import config
from fedmcc.runs import experiment
from fedmcc.runs.build import build_network, fingerprint
from fedmcc.runs.directory import Run

HERE = Path(__file__).parent
HOW = "Written by `python tests/golden/regenerate.py`; compared to a relative 1e-5."
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
SMALL = {"hidden": 32, "projections": 16}
METHOD = {"name": "fedmcc", "rounds": 2, "hidden": 32}
FEDERATED: dict[str, dict[str, Any]] = {  # a clustering after fedmcc
    "mcc": {"rounds": 2, "epochs": 1, "hidden": 32},
    "informative": {"prototypes": 2.0, "smallest": 1},
}
FEATURES_ALONE = ("fedbyol", "fedu", "fedema", "fedsimclr", "fedsimsiam", "fedmoco", "fedca")
CLUSTERINGS: dict[str, dict[str, Any]] = {"mcc": {"rounds": 2, "epochs": 1}, "kmeans": {}}
PARTITIONS = ("iid", "by_class")


def losses(method: str) -> list[float]:
    """The mean loss of each of five rounds."""
    with tempfile.TemporaryDirectory() as folder:
        return [row["loss"] for row in trained(_alone(method), Path(folder) / "run").rows()]


def federation(clustering: str, partition: str) -> dict[str, Any]:
    """What three clients train and send, round by round, and the size of what they end with."""
    with tempfile.TemporaryDirectory() as folder:
        run = trained(federated(clustering, partition), Path(folder) / "run")
        rows = run.rows()
        return {
            "fingerprint": mark(clustering, partition),
            "rounds": [f"{row['stage']} {row['round']}" for row in rows],
            "losses": [row["loss"] for row in rows],
            "bytes": [[row["bytes_down"], row["bytes_up"]] for row in rows],
            "norms": _norms(run),
        }


def federated(clustering: str, partition: str) -> dict[str, Any]:
    """The configuration of a federation of three clients."""
    sharing = {"name": partition, "clients": 3}
    after = {"name": clustering, **FEDERATED[clustering]}
    return {**TINY, "method": METHOD, "clustering": after, "partition": sharing}


def mark(clustering: str, partition: str) -> str:
    """The fingerprint by which a site and a server tell whether they train the same network."""
    complete = config.parse({**federated(clustering, partition), "clusters": 10})
    return fingerprint(build_network(complete, channels=1), complete)


def trained(table: Mapping[str, Any], path: Path) -> Run:
    """A finished run of a configuration."""
    return experiment.run(config.parse(table), path)


def digests(table: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of all that a run writes and that does not depend on the clock, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        run = trained(table, Path(folder) / "run")
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]
        kept = sorted(run.resume_folder.iterdir())
        contents = {
            "model": run.model_file.read_bytes(),
            "resume": b"".join(path.name.encode() + path.read_bytes() for path in kept),
            "rows": json.dumps(rows).encode(),
            "scores": run.scores_file.read_bytes() + run.assignments_file.read_bytes(),
            "config": run.config_file.read_bytes(),
        }
        return {kind: sha256(content).hexdigest() for kind, content in contents.items()}


def _alone(method: str) -> dict[str, Any]:
    return {**TINY, "method": {"name": method, "rounds": 5, **SMALL}}


def _norms(run: Run) -> dict[str, list[float]]:
    """The 1-norm and the 2-norm of each part of the final network."""
    parts: dict[str, list[Any]] = {}
    for name, value in sorted(safetensors.torch.load_file(run.model_file).items()):
        parts.setdefault(".".join(name.split(".")[:2]), []).append(value.double())
    return {
        part: [sum(value.norm(p=p).item() ** p for value in values) ** (1 / p) for p in (1, 2)]
        for part, values in parts.items()
    }


def _all_tables() -> dict[str, dict[str, Any]]:
    """Every configuration whose bits are compared, by name."""
    tables = {method: _alone(method) for method in ("cc", "mcc")}
    tables |= {f"{after} {name}": federated(after, name) for after in FEDERATED for name in PARTITIONS}
    three = {**TINY, "partition": {"clients": 3}, "federation": {"count": 2}}
    tables["defaults"] = {**three, "method": {"rounds": 4}}
    for method in FEATURES_ALONE:
        tables[method] = {**three, "method": {"name": method, "rounds": 2, "epochs": 1}}
    for name, options in CLUSTERINGS.items():
        tables[f"fedsimclr {name}"] = {**tables["fedsimclr"], "clustering": {"name": name, **options}}
    pool = {"engine": {"name": "pool", "workers": 2}, "federation": {"half": True}}
    return {**tables, "pool half": {**tables["informative by_class"], **pool}}


def _write(name: str, content: Mapping[str, Any]) -> None:
    (HERE / name).write_text(json.dumps({"how": HOW, **content}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--digest"]:
        for name, table in _all_tables().items():
            for kind, digest in digests(table).items():
                print(f"{digest}  {name}: {kind}", flush=True)
        sys.exit()
    _write("losses.json", {"losses": {method: losses(method) for method in ("cc", "mcc")}})
    every = {f"{after} {name}": federation(after, name) for after in FEDERATED for name in PARTITIONS}
    _write("federations.json", {"federations": every})
