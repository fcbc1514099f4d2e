"""One hostile client of five: what each rule of `federation.aggregation` withstands, on digits.

Each run is one line of JSON in the file given with --runs; runs that it already holds are not repeated.
Scores are compared with the run of the same rule and seed in which nobody attacks.

python benchmarks/robustness.py [--runs FILE] [--seeds 3] [--report results/robustness.md] [--only-report]
python benchmarks/robustness.py --speed  # CPU seconds of each rule for 20 ResNet-18s
"""

import argparse
import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from attacks import ATTACKS, AttackedEngine
from fedmcc import config
from fedmcc.federation.aggregation import AGGREGATIONS, DEFAULT
from fedmcc.federation.rounds import Progress, Round, RoundFailedError, rounds
from fedmcc.numerics.state_dicts import copy_into, detached, select
from fedmcc.runs.build import Experiment, assemble, build_network
from fedmcc.training.torch_setup import set_up_torch
from measuring import show

CLIENTS = 5
PARTITIONS = {"iid": "IID", "by_class": "two classes each"}
REFERENCES = {"none", "does not answer"}  # not attacks
MINORITY = "minority"  # four clients share eight classes, the fifth has the other two
MINORITY_CLASSES = (8, 9)
RUNS = Path("build/robustness.jsonl")
SCHEDULE: dict[str, Any] = {
    "threads": 1,
    "device": "cpu",
    "data": {"name": "digits"},
    "views": {"size": 16},
    "encoder": {"width": 8},
    "method": {
        "name": "fedmcc",
        "rounds": 12,
        "epochs": 2,
        "hidden": 128,
        "momentum": 0.9,
    },
    "training": {"batch_size": 64, "learning_rate": 3e-3},
    "evaluation": {"every": 1000},
}


class Cell(NamedTuple):
    """One run."""

    partition: str
    attack: str
    rule: str
    seed: int


def main() -> None:
    """Run what is missing, in order of importance, and write the report."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--runs", type=Path, default=RUNS)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--report", type=Path, default=Path("results/robustness.md"))
    arguments.add_argument("--only-report", action="store_true")
    arguments.add_argument("--speed", action="store_true")
    options = arguments.parse_args()
    if options.speed:
        show(("rule", "CPU seconds, 20 clients of ResNet-18"), speeds())
        return
    if not options.only_report:
        options.runs.parent.mkdir(parents=True, exist_ok=True)
        at = commit()
        for cell in cells(options.seeds):
            if cell not in dict(read(options.runs)):
                line = json.dumps({**cell._asdict(), **measure(cell), "commit": at})
                with options.runs.open("a") as file:
                    file.write(line + "\n")
    options.report.write_text(report(dict(read(options.runs))))


def speeds() -> Iterator[list[str]]:
    """CPU seconds of each rule for the weights of 20 ResNet-18s, with one thread."""
    set_up_torch(1)
    table = {"clusters": 10, "method": {"name": "fedmcc"}, "encoder": {"name": "resnet18"}}
    settings = config.parse(table | {"views": {"size": 32}})
    sent = select(build_network(settings, 3).state_dict(), settings.method.stages()[0].shared)
    draw = torch.Generator().manual_seed(0)
    states = [
        {
            name: value + 0.01 * torch.rand(value.shape, generator=draw)
            if value.is_floating_point()
            else value
            for name, value in sent.items()
        }
        for _ in range(20)
    ]
    for name, rule in AGGREGATIONS.items():
        started = time.process_time()
        rule(states, [1.0] * len(states), sent)
        yield [name, f"{time.process_time() - started:.1f}"]


def cells(seeds: int) -> Iterator[Cell]:
    """All runs, in the order of their importance: the default, mean and median, a minority, other rules."""
    for rule in (DEFAULT, "mean", "median"):
        for seed, attack in itertools.product(range(seeds), ATTACKS):
            yield from (Cell(partition, attack, rule, seed) for partition in PARTITIONS)
        if rule == DEFAULT:
            yield from (Cell(MINORITY, "none", each, 0) for each in AGGREGATIONS)
    yield from (Cell(MINORITY, "none", rule, seed) for seed in range(1, seeds) for rule in AGGREGATIONS)
    for seed, attack, rule in itertools.product(range(seeds), ATTACKS, AGGREGATIONS):
        yield from (Cell(partition, attack, rule, seed) for partition in PARTITIONS)


def measure(cell: Cell) -> dict[str, Any]:
    """Train a federation with one hostile client and score it."""
    started = time.process_time()
    experiment = build(cell)
    engine = AttackedEngine(experiment.engine, ATTACKS[cell.attack], cell.seed)
    progress, refused = Progress(detached(experiment.net.state_dict())), 0
    with suppress(RoundFailedError):  # the attack ended the run: the model that it reached is scored
        for stage in experiment.stages:
            for event in rounds(stage, progress, engine, experiment.clients, experiment.policy(b"")):
                if isinstance(event, Round):
                    progress, refused = event.progress, refused + len(event.refused)
    copy_into(experiment.net, progress.model)
    scores = experiment.scorer.round(experiment.net.online, with_head=True, with_kmeans=True)
    kept = {name: scores[name] for name in SCORES}
    found = experiment.scorer.extract(experiment.net.online).assignments.argmax(axis=1)
    kept["minority_acc"] = accuracy_of(experiment.images.labels, found, MINORITY_CLASSES)
    return {**kept, "refused": refused, "seconds": time.process_time() - started}


def build(cell: Cell) -> Experiment:
    """The federation of a run."""
    sharing = (
        {"name": "by_group"} if cell.partition == MINORITY else {"name": cell.partition, "clients": CLIENTS}
    )
    table = {**SCHEDULE, "seed": cell.seed, "partition": sharing, "federation": {"aggregation": cell.rule}}
    settings = config.parse(table)
    images = settings.data.load()
    labels = images.labels
    rank = np.array([np.sum(labels[:row] == label) for row, label in enumerate(labels)])
    groups = np.where(np.isin(labels, MINORITY_CLASSES), CLIENTS - 1, rank % (CLIENTS - 1))
    return assemble(settings, replace(images, groups=groups, owners=tuple("abcde")))


def accuracy_of(labels: np.ndarray, clusters: np.ndarray, classes: Sequence[int]) -> float:
    """The part of the images of these classes that lie in the clusters matched to their classes."""
    table = np.zeros((labels.max() + 1, max(labels.max(), clusters.max()) + 1))
    np.add.at(table, (labels, clusters), 1)
    matched = dict(zip(*linear_sum_assignment(-table), strict=True))
    return float(sum(table[k, matched[k]] for k in classes) / table[list(classes)].sum())


def read(path: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """The runs in a file of JSON lines."""
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        yield Cell(row["partition"], row["attack"], row["rule"], row["seed"]), row


def report(runs: dict[Cell, dict[str, Any]]) -> str:
    """The Markdown page: one table per partition and score."""
    seconds = statistics.median(row["seconds"] for row in runs.values())
    commits = ", ".join(sorted({row["commit"] for row in runs.values()}))
    lines = [INTRODUCTION.format(command=COMMAND, commits=commits, runs=len(runs), seconds=seconds)]
    for partition, title in PARTITIONS.items():
        lines += [f"\n## {title}\n", *summary(runs, partition)]
        for key, name in SCORES.items():
            lines += [f"\n### {name}, {title}\n", *table(runs, partition, key)]
    lines += [MINORITY_INTRODUCTION, *minority(runs)]
    return "\n".join(lines) + "\n"


def minority(runs: dict[Cell, dict[str, Any]]) -> list[str]:
    """What each rule does to an honest client with classes that nobody else has."""
    lines = [
        "| rule | ACC of the head | of the two classes | ACC of k-means on features |",
        "|---|---|---|---|",
    ]
    for rule in AGGREGATIONS:
        cell = Cell(MINORITY, "none", rule, 0)
        found = [text(runs, cell, key) for key in ("acc", "minority_acc", "kmeans_acc")]
        lines.append(f"| {rule} | " + " | ".join(found) + " |")
    return lines


def summary(runs: dict[Cell, dict[str, Any]], partition: str) -> list[str]:
    """The largest loss of head ACC of each rule, over all attacks on answers."""
    lines = ["| rule | attacks measured | largest loss of head ACC | under |", "|---|---:|---:|---|"]
    for rule in AGGREGATIONS:
        losses = {
            attack: -statistics.mean(difference)
            for attack in ATTACKS.keys() - REFERENCES
            if (difference := differences(runs, Cell(partition, attack, rule, 0), "acc"))
        }
        if worst := max(losses, key=lambda attack: losses[attack], default=""):
            lines.append(f"| {rule} | {len(losses)} | {losses[worst]:.3f} | {worst} |")
    return lines


def table(runs: dict[Cell, dict[str, Any]], partition: str, key: str) -> list[str]:
    """Attacks by rules: mean and deviation of the score, and the mean difference from no attack."""
    rules = [rule for rule in AGGREGATIONS if any(cell.rule == rule for cell in runs)]
    lines = ["| attack | " + " | ".join(rules) + " |", "|---|" + "---|" * len(rules)]
    for attack in ATTACKS:
        found = [text(runs, Cell(partition, attack, rule, 0), key) for rule in rules]
        lines.append(f"| {attack} | " + " | ".join(found) + " |")
    return lines


def text(runs: dict[Cell, dict[str, Any]], cell: Cell, key: str) -> str:
    """A cell of a table: `mean ± deviation (difference), n`."""
    values = [row[key] for row in of_seeds(runs, cell).values()]
    if not values:
        return "–"
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    difference = differences(runs, cell, key)
    against = f" ({statistics.mean(difference):+.3f})" if difference and cell.attack != "none" else ""
    return f"{statistics.mean(values):.3f}{deviation}{against}, n={len(values)}"


def differences(runs: dict[Cell, dict[str, Any]], cell: Cell, key: str) -> list[float]:
    """Score minus that of the undisturbed run, seed by seed."""
    undisturbed = of_seeds(runs, cell._replace(attack="none"))
    attacked = of_seeds(runs, cell)
    return [
        attacked[seed][key] - undisturbed[seed][key] for seed in sorted(attacked.keys() & undisturbed.keys())
    ]


def of_seeds(runs: dict[Cell, dict[str, Any]], cell: Cell) -> dict[int, dict[str, Any]]:
    """The runs of a cell by seed."""
    return {found.seed: row for found, row in runs.items() if found._replace(seed=0) == cell._replace(seed=0)}


def commit() -> str:
    """The commit of the working tree."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


SCORES = {
    "acc": "ACC of the head",
    "kmeans_acc": "ACC of k-means on features",
    "nmi": "NMI of the head",
    "kmeans_nmi": "NMI of k-means on features",
}
COMMAND = "OMP_NUM_THREADS=1 python benchmarks/robustness.py"
MINORITY_INTRODUCTION = """
## An honest minority

Nobody attacks. Four clients share eight classes at random; the fifth has all images of the digits 8 and 9.
"""
INTRODUCTION = """# One hostile client of five

What each rule of `federation.aggregation` withstands; [docs/robustness.md](../docs/robustness.md) explains
the rules and the attacks. `{command}` writes this page: {runs} runs, each of {seconds:.0f} CPU seconds
(median), at {commits}, on 2 cores of an AMD EPYC. It continues with the runs that are missing (–).

The default on scikit-learn's 1,797 digits, a short schedule: 12 rounds of 2 epochs at 16 px, convnet of
width 8. Five clients, one of them hostile in every round. Cells: mean ± sample deviation over n seeds; in
brackets, the mean difference from the run of the same rule and seed without an attack. "does not answer" is
a reference: the hostile client's images are missing and nothing else happens. With so short a schedule, any
change of the training moves the ACC of one seed by several hundredths, up or down.
"""

if __name__ == "__main__":
    main()
