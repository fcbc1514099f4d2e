"""How far the chosen number of clusters is from the number of classes; other criteria on the same features.

Features are trained once for each data set, with all images and with thinned classes, and kept in `--cache`.
A file of features (`features` and `labels`, such as those of a pretrained encoder) can be added. Labels only
thin the classes and score.

python benchmarks/choosing_clusters.py --data FOLDER --cache FOLDER [--features NAME=FILE.npz ...] [--seeds 3]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.evaluation.features import extract
from fedmcc.numerics.randomness import derive
from fedmcc.runs.build import assemble
from fedmcc.runs.in_memory import train_in_memory

ROUNDS = {"digits": 40, "mnist": 12, "kmnist": 12}
IMAGES = {"even": 2_500, "thinned": 6_000}  # before classes are thinned


class Features(NamedTuple):
    """Features of images and their classes."""

    features: np.ndarray
    labels: np.ndarray


def main() -> None:
    """Train what is missing."""
    options = read_options()
    for name in ROUNDS:
        for kind in IMAGES:
            for seed in range(options.networks):
                trained(name, kind, seed, options)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--networks", type=int, default=1)
    return parser.parse_args()


def trained(name: str, kind: str, seed: int, options: argparse.Namespace) -> Features:
    """Features of a network trained on these images."""
    path = options.cache / f"{name}-{kind}-{seed}.npz"
    if not path.exists():
        images = images_of(name, kind, seed, options.data)
        table = {"seed": seed, "threads": 1, "data": data_table(name, options.data)}
        experiment = assemble(parse({**table, "method": {"rounds": ROUNDS[name]}}), images)
        train_in_memory(experiment)
        found = extract(experiment.net.online, images.images, experiment.config.views.plain)
        options.cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, features=found.features, labels=images.labels)
        print(path, found.features.shape, flush=True)
    with np.load(path) as file:
        return Features(file["features"], file["labels"])


def images_of(name: str, kind: str, seed: int, root: Path) -> ImageSet:
    """Images of a data set, all or with thinned classes."""
    images = parse({"data": data_table(name, root)}).data.load()
    draw = np.random.default_rng(derive(seed, "images"))
    rows = draw.permutation(len(images))[: IMAGES[kind]]
    if kind == "thinned":
        rows = thinned(rows, images.labels, draw)
    return replace(images, images=images.images[rows], labels=images.labels[rows])


def data_table(name: str, root: Path) -> dict[str, str]:
    """The section [data] of a data set; KMNIST has the files of MNIST in a folder of its own."""
    if name == "kmnist":
        return {"name": "mnist", "root": str(root / "kmnist"), "split": "test"}
    return {"name": name} | ({"root": str(root)} if name == "mnist" else {})


def thinned(rows: np.ndarray, labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """The rows in which the i-th class of a random order has n · 10^(-i/9) of its n images."""
    kept = []
    for place, label in enumerate(draw.permutation(np.unique(labels))):
        own = rows[labels[rows] == label]
        kept.append(own[: round(len(own) * 10 ** (-place / 9))])
    return np.sort(np.concatenate(kept))


if __name__ == "__main__":
    main()
