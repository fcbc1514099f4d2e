"""Repeats the clustering of finished runs with this version: their encoders stay as they were trained.

For runs of `fedmcc-plus` and of methods followed by `spectral`. The stages that train nothing and follow the
training are run again with the options and the seed of the run, which is not changed. Labels only score.

python benchmarks/recluster.py RUN... --out recluster.jsonl
"""

import argparse
import json
import time
from pathlib import Path

from fedmcc.config import load
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.methods.base import Stage
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, prepare
from fedmcc.runs.checkpoints import load_state
from fedmcc.runs.directory import Run

ON_FEATURES = ("whitening", "centroids", "prototypes", "merging")  # stages of federated spectral clustering


def main() -> None:
    """Cluster each run that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["run"] for line in lines}
    for path in (path for path in options.runs if path.name not in done):
        row = {"run": path.name, **recluster(Run(path))}
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(
            f"{path.name}: ACC {row['before']['acc']:.3f} -> {row['acc']:.3f}, NMI {row['nmi']:.3f}",
            flush=True,
        )


def recluster(run: Run) -> dict[str, object]:
    """The scores of the head before and now, and the processor time."""
    experiment, started = prepare(load(run.config_file)), time.process_time()
    trained = load_state(run.model_file)
    copy_into(
        experiment.net, {name: value for name, value in trained.items() if "cluster_projector" not in name}
    )
    progress = Progress(detached(experiment.net.state_dict()))
    stages = [stage for stage in experiment.stages if stage.name in ON_FEATURES]
    with experiment.engine:
        for stage in stages:
            progress = finish(experiment, stage, progress)
    copy_into(experiment.net, progress.model)
    assert experiment.scorer is not None
    seconds, online = time.process_time() - started, experiment.net.online
    scores = experiment.scorer.final(online, experiment.scorer.extract(online))
    before = json.loads(run.scores_file.read_text())["scores"]["head"]
    return {**scores["scores"]["head"], "knn": scores["knn"], "before": before, "seconds": seconds}


def finish(experiment: Experiment, stage: Stage, progress: Progress) -> Progress:
    """The progress after all rounds of a stage."""
    for event in rounds(stage, progress, experiment.engine, experiment.clients, experiment.policy(b"")):
        if isinstance(event, Round):
            progress = event.progress
    return progress


if __name__ == "__main__":
    main()
