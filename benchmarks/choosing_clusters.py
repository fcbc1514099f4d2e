"""How far the chosen number of clusters is from the number of classes; other criteria on the same features.

Features are trained once for each data set, with all images and with thinned classes, and kept in `--cache`.
A file of features (`features` and `labels`, such as those of a pretrained encoder) can be added. Labels only
thin the classes and score.

python benchmarks/choosing_clusters.py --data FOLDER --cache FOLDER [--features NAME=FILE.npz ...]
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fedmcc.methods.federated_spectral import CURVE, FederatedSpectral
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import nn

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.evaluation.features import extract
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics import cluster_number
from fedmcc.numerics.kmeans import unit_rows
from fedmcc.numerics.neighbours import nearest
from fedmcc.numerics.randomness import derive, generator
from fedmcc.numerics.state_dicts import detached
from fedmcc.runs.build import assemble
from fedmcc.runs.in_memory import train_in_memory
from fedmcc.training.loop import Training
from fedmcc.views import Views
from heads import FeatureClient
from measuring import show

ROUNDS = {"digits": 20, "mnist": 12, "kmnist": 12}
IMAGES = {"even": 2_500, "thinned": 6_000}  # before classes are thinned
MOST = 30  # clusters that all criteria consider
COMPARED = 1_000  # images of the other criteria
REFERENCES = 3  # data sets without structure, of the gap statistic
AXES = 50  # principal axes of the gap statistic
NEIGHBOURS = 10  # of each image, in the graph of the eigengap


class Features(NamedTuple):
    """Features of images and their classes."""

    features: np.ndarray
    labels: np.ndarray


def main() -> None:
    """Train what is missing, choose by all criteria, and print a table."""
    options = read_options()
    torch.set_num_threads(1)
    rows = []
    for name, given in all_features(options):
        classes, features = len(np.unique(given.labels)), unit_rows(given.features.astype(np.float32))
        path = options.cache / f"{name}.json"
        chosen = json.loads(path.read_text()) if path.exists() else {}
        for criterion, choose in CRITERIA.items():
            if criterion not in chosen:
                chosen[criterion] = choose(features)
                path.write_text(json.dumps(chosen))
        rows.append([name, str(len(features)), str(classes), *(str(chosen[each]) for each in CRITERIA)])
        print(name, chosen, flush=True)
    show(["features", "images", "classes", *CRITERIA], rows)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1, help="networks of each data set")
    parser.add_argument("--name", action="append", help="only these data sets")
    parser.add_argument("--features", action="append", default=[], help="NAME=FILE.npz")
    return parser.parse_args()


def all_features(options: argparse.Namespace) -> Iterator[tuple[str, Features]]:
    """Trained features, then those of files, even and thinned, each with a name."""
    for name in options.name or ROUNDS:
        for kind in IMAGES:
            for seed in range(options.seeds):
                yield f"{name}-{kind}-{seed}", trained(name, kind, seed, options)
    for name, _, path in (given.partition("=") for given in options.features):
        with np.load(path) as file:
            features, labels = file["features"], file["labels"].astype(np.int64)
        for kind, count in IMAGES.items():
            draw = np.random.default_rng(0)
            rows = draw.permutation(len(labels))[:count]
            rows = thinned(rows, labels, draw) if kind == "thinned" else rows
            yield f"{name}-{kind}", Features(features[rows], labels[rows])


def by_stability(features: np.ndarray) -> int:
    """What fedmcc chooses from these features, held by one client."""
    net, method = Network(Branch(nn.Flatten())), FederatedSpectral(choose=True)
    method.extend(net, features.shape[1], MOST)
    initialise(net, generator(0, "weights"))
    progress, policy = Progress(detached(net.state_dict())), Policy(Federation(), 0)
    with Embedded(net, [FeatureClient(0, features, Views(), Training(keep_optimizer=False), 0)]) as engine:
        for stage in method.stages():
            for event in rounds(stage, progress, engine, range(1), policy):
                if isinstance(event, Round):
                    progress = event.progress
    return cluster_number.ranked(progress.extras[CURVE].double().numpy())[0]


def by_silhouette(features: np.ndarray) -> int:
    """The number of clusters of k-means with the largest mean silhouette."""
    some = features[:COMPARED]
    scores = [silhouette_score(some, cluster(some, count).labels_) for count in range(2, MOST + 1)]
    return 2 + int(np.argmax(scores))


def by_gap(features: np.ndarray) -> int:
    """The first number of clusters whose gap is not below the next one less its error (Tibshirani et al.).

    References are uniform in the box of the first principal components.
    """
    some, draw = features[:COMPARED] - features[:COMPARED].mean(axis=0), np.random.default_rng(0)
    rotated = some @ np.linalg.svd(some, full_matrices=False)[2][:AXES].T
    low, high = rotated.min(axis=0), rotated.max(axis=0)
    references = [draw.uniform(low, high, rotated.shape).astype(np.float32) for _ in range(REFERENCES)]
    gaps, errors = [], []
    for count in range(1, MOST + 1):
        expected = [np.log(cluster(each, count).inertia_) for each in references]
        gaps.append(np.mean(expected) - np.log(cluster(rotated, count).inertia_))
        errors.append(np.std(expected) * np.sqrt(1 + 1 / REFERENCES))
    enough = [gaps[i] >= gaps[i + 1] - errors[i + 1] for i in range(MOST - 1)]
    return 1 + enough.index(True) if any(enough) else MOST


def by_eigengap(features: np.ndarray) -> int:
    """The largest gap between eigenvalues of the normalised graph of nearest neighbours, from 2 on."""
    some = features[:COMPARED]
    near, _ = nearest(torch.from_numpy(some), NEIGHBOURS)
    graph = np.zeros((len(some), len(some)))
    np.put_along_axis(graph, near.numpy(), 1.0, axis=1)
    graph = np.maximum(graph, graph.T)
    degrees = graph.sum(axis=1)
    values = np.linalg.eigvalsh(graph / np.sqrt(np.outer(degrees, degrees)))[::-1]
    return 2 + int(np.argmax(values[1:MOST] - values[2 : MOST + 1]))


def cluster(rows: np.ndarray, count: int) -> KMeans:
    """k-means with two restarts."""
    return KMeans(count, n_init=2, random_state=0).fit(rows)


CRITERIA: dict[str, Callable[[np.ndarray], int]] = {
    "fedmcc": by_stability,
    "silhouette": by_silhouette,
    "gap": by_gap,
    "eigengap": by_eigengap,
}


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
