"""Trains the encoders of decision 35 and writes their features, for benchmarks/recluster.py.

A file has the features of all images, their labels, and the client of each; a tenth of every class is with no
client (-1). Files that exist are not made again, and several processes may share the work.

python benchmarks/encoders.py --root FOLDER --out build/encoders [--method fedsimclr] [--only mnist-same]
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, assemble
from fedmcc.training.torch_setup import set_up_torch
from scanners import devices, divided, pixels, scanned

SCHEDULE = {"rounds": 16, "epochs": 1, "hidden": 512}
METHODS: dict[str, dict[str, Any]] = {
    "fedmcc": {},
    "fedsimclr": {"projections": 128, "temperature": 0.5},
    "fedu": {"projections": 128, "momentum": 0.95},
}
SETS: dict[str, tuple[int, dict[str, str]]] = {  # images and options of the data set
    "digits": (1_797, {}),
    "mnist": (2_000, {}),
    "kmnist": (4_000, {"split": "test"}),
    "cifar10": (2_000, {}),
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"name": "iid"},
    "two": {"name": "by_class"},
    "dirichlet": {"name": "dirichlet", "alpha": 0.3},
    "thinned": {"name": "iid"},
}
CLIENTS, WITHHELD = 5, 0.1


class Cell(NamedTuple):
    """One training."""

    images: str
    look: str  # same: one device; mild: another device at each client
    partition: str
    seed: int


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder with mnist, kmnist and cifar10")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", default="fedmcc", choices=METHODS)
    parser.add_argument("--only", default="", help="part of the names of the cells to train")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    set_up_torch(1)
    for cell in cells(options.seeds):
        path = options.out / f"{options.method}-{'-'.join(map(str, cell))}.npz"
        lock = path.with_suffix(".lock")
        if options.only in path.stem and not path.exists() and not lock.exists():
            lock.touch()
            train(build(cell, options.method, options.root), path)
            lock.unlink()


def cells(seeds: int) -> Iterator[Cell]:
    """All cells, one seed after the other; devices differ on sets in grey."""
    for seed in range(seeds):
        for name, partition in itertools.product(SETS, PARTITIONS):
            yield Cell(name, "same", partition, seed)
        for name, partition in itertools.product(("digits", "mnist", "kmnist"), ("iid", "two", "dirichlet")):
            yield Cell(name, "mild", partition, seed)


def build(cell: Cell, method: str, root: Path) -> Experiment:
    """The federation of a cell."""
    limit, source = SETS[cell.images]
    photographs = cell.images == "cifar10"
    table: config.Table = {
        "seed": cell.seed,
        "threads": 1,
        "device": "cpu",
        "clusters": 10,
        "data": {"name": cell.images, **source},
        "views": {"preset": "photo" if photographs else "digits", "size": 32 if photographs else 28},
        "method": {"name": method, **SCHEDULE, **METHODS[method]},
        "clustering": {"name": "none"},
        "training": {"batch_size": 64, "learning_rate": 1e-3},
        "evaluation": {"every": 1000},
    }
    if cell.images != "digits":
        table["data"]["root"] = str(root)
    if cell.look == "same":
        table["data"] |= {} if cell.images == "digits" else {"limit": limit}
        table["data"] |= {"thinned": 10.0} if cell.partition == "thinned" else {}
        own = {"clients": CLIENTS, "smallest": 20, "withheld": WITHHELD}
        settings = config.parse({**table, "partition": {**PARTITIONS[cell.partition], **own}})
        return assemble(settings, settings.data.load())
    settings = config.parse({**table, "partition": {"name": "by_group", "withheld": WITHHELD}})
    images, draw = settings.data.load().take(slice(limit)), np.random.default_rng(cell.seed)
    groups = divided(images.labels, {"two": "by_class"}.get(cell.partition, cell.partition), draw)
    seen = scanned(pixels(images), groups, devices(cell.look, draw))
    rows = np.rint(seen.clip(0, 1) * 255).astype(np.uint8)[:, None]
    return assemble(
        settings, ImageSet(rows, images.labels, images.classes, groups=groups, owners=tuple("abcde"))
    )


def train(experiment: Experiment, path: Path) -> None:
    """Train, and write the features of all images."""
    started, progress = time.process_time(), Progress(detached(experiment.net.state_dict()))
    with experiment.engine:
        for stage in experiment.stages:
            for event in rounds(
                stage, progress, experiment.engine, experiment.clients, experiment.policy(b"")
            ):
                progress = event.progress if isinstance(event, Round) else progress
    copy_into(experiment.net, progress.model)
    assert experiment.scorer is not None
    client = np.full(len(experiment.images), -1)
    for index, rows in enumerate(experiment.shards):
        client[rows] = index
    features, labels = experiment.scorer.extract(experiment.net.online).features, experiment.images.labels
    partial = path.with_suffix(".part.npz")
    np.savez(partial, features=features, labels=labels, client=client)
    partial.rename(path)
    print(path.name, f"{time.process_time() - started:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
