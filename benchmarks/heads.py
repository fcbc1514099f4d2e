"""Clusterings of precomputed features, such as those of a pretrained encoder, in five simulated clients.

The file has `features` (a row per image) and `labels`, which only score. The stages, rounds, checks and
messages are those of a run; only the encoder is left out. Finished cells are read from the JSON lines.
If the file has the `client` of each image, as files of head_features.py do, these are the clients; the
seed is then that of the clustering alone. With `pixels`, the head "pixels" is k-means on them.

python benchmarks/heads.py FEATURES.npz --out heads.jsonl [--seeds 3] [--head neighbours:rounds=10 ...]
    [--thinned] [--clusters 50]
"""

import argparse
import json
import statistics
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedmcc.data.base import ImageSet
from fedmcc.data.partition import PartitionOptions, partition_images
from fedmcc.evaluation.clustering import accuracy, ari, nmi
from fedmcc.federation.client import INFERENCE_BATCH, Client
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.methods import CLUSTERINGS
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics import kmeans
from fedmcc.numerics.randomness import derive, generator
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.training.loop import Training
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import Views

HEADS = ("best", "neighbours", "kmeans", "lloyd:unit=true", "spectral", "k-fed", "pooled")
PARTITIONS = {"iid": "iid", "two classes each": "by_class"}


class FeatureClient(Client):
    """A client whose images are features."""

    def _plain_batches(self, net: Network) -> Iterator[Tensor]:
        yield from torch.from_numpy(self.images).split(INFERENCE_BATCH)


class Cell(NamedTuple):
    """A clustering with its options, a partition and a seed."""

    head: str
    partition: str
    seed: int


class Rows(NamedTuple):
    """The images that are clustered, one row each."""

    features: np.ndarray
    labels: np.ndarray
    pixels: np.ndarray | None
    client: np.ndarray | None  # None: drawn

    def take(self, rows: np.ndarray) -> "Rows":
        """Some of the images."""
        return Rows(*(None if array is None else array[rows] for array in self))


def main() -> None:
    """Measure the missing cells and print a table."""
    options = read_options()
    set_up_torch(1)
    rows, done = read_features(options.features), read_rows(options.out)
    partitions = options.partition or [*PARTITIONS] if rows.client is None else ["as in the run"]
    for seed in range(options.seeds):
        chosen = rows.take(thinned(rows.labels, seed)) if options.thinned else rows
        clusters = options.clusters or len(np.unique(rows.labels))
        for partition in partitions:
            for head in options.head or HEADS:
                cell = Cell(head, partition + (", thinned" if options.thinned else ""), seed)
                if cell not in done:
                    done[cell] = measure(cell, chosen, clusters)
                    with options.out.open("a") as out:
                        out.write(json.dumps({"cell": cell, **done[cell]}) + "\n")
    print_table(done)


def read_features(path: Path) -> Rows:
    """The arrays of the file."""
    with np.load(path) as file:
        given = {name: file[name] if name in file.files else None for name in ("pixels", "client")}
        return Rows(file["features"].astype(np.float32), file["labels"].astype(np.int64), **given)


def thinned(labels: np.ndarray, seed: int) -> np.ndarray:
    """Rows of n · 10^(-i/9) of the n images of the i-th class, of ten classes in a random order."""
    draw = np.random.default_rng(100 + seed)
    order = draw.permutation(np.unique(labels))
    kept = []
    for place, label in enumerate(order):
        rows = draw.permutation(np.flatnonzero(labels == label))
        kept.append(rows[: round(len(rows) * 10 ** (-place / (len(order) - 1)))])
    return np.sort(np.concatenate(kept))


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--thinned", action="store_true", help="thin the classes, up to 10:1")
    parser.add_argument("--clusters", type=int, help="instead of the number of classes")
    parser.add_argument("--head", action="append", help="a clustering, such as kmeans:axes=0.0,excess=3.0")
    parser.add_argument("--partition", action="append", choices=tuple(PARTITIONS))
    return parser.parse_args()


def read_rows(path: Path) -> dict[Cell, dict[str, float]]:
    """The cells that were measured before."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {Cell(*row.pop("cell")): row for row in rows}


def measure(cell: Cell, rows: Rows, clusters: int) -> dict[str, float]:
    """Scores, CPU seconds, and bytes per client of a cell."""
    start, traffic = time.process_time(), {"down": 0.0, "up": 0.0, "rounds": 0.0}
    if cell.head == "pooled":
        assigned = kmeans.fit(kmeans.unit_rows(rows.features), clusters, cell.seed).labels_
    elif cell.head == "pixels":
        assigned = kmeans.fit((rows.pixels / 255).astype(np.float32), clusters, cell.seed).labels_
    else:
        assigned, traffic = federate(cell, rows, clusters)
    seconds, labels = time.process_time() - start, rows.labels
    scores = {"acc": accuracy(labels, assigned), "nmi": nmi(labels, assigned), "ari": ari(labels, assigned)}
    return {**scores, "seconds": seconds, **traffic}


def federate(cell: Cell, rows: Rows, clusters: int) -> tuple[np.ndarray, dict[str, float]]:
    """The clusters by a federation of five clients, and its traffic per client."""
    net, clustering = Network(Branch(nn.Flatten())), make_clustering(cell.head)
    clustering.extend(net, rows.features.shape[1], clusters)
    initialise(net, generator(cell.seed, "weights"))
    progress, policy = Progress(detached(net.state_dict())), Policy(Federation(), cell.seed)
    finished: list[Round] = []
    with Embedded(net, clients_of(cell, rows)) as engine:
        for stage in clustering.stages():
            stage = replace(stage, seed=1000 * cell.seed) if hasattr(stage, "seed") else stage
            for event in rounds(stage, progress, engine, range(len(engine.members)), policy):
                if isinstance(event, Round):
                    finished.append(event)
                    progress = event.progress
    copy_into(net, progress.model)
    with torch.no_grad():
        assigned = net.eval().online.assign(torch.from_numpy(rows.features)).argmax(dim=1).numpy()
    down, up = (sum(getattr(each, f"bytes_{way}") for each in finished) / 5 for way in ("down", "up"))
    return assigned, {"down": down, "up": up, "rounds": float(len(finished))}


def make_clustering(head: str) -> Any:
    """The clustering with its options; each is a TOML value."""
    name, _, given = head.partition(":")
    return CLUSTERINGS[name](**tomllib.loads(given.replace(",", "\n")))


def clients_of(cell: Cell, rows: Rows) -> list[Client]:
    """The clients with their rows; five if the file does not name them."""
    if rows.client is None:
        options = PartitionOptions(name=PARTITIONS[cell.partition.removesuffix(", thinned")], clients=5)
        classes = tuple(map(str, np.unique(rows.labels)))
        held = ImageSet(np.zeros((len(rows.labels), 1, 1, 1), np.uint8), rows.labels, classes)
        shards = partition_images(held, options, derive(cell.seed, "partition"))
    else:
        shards = [np.flatnonzero(rows.client == client) for client in np.unique(rows.client)]
    return [
        FeatureClient(index, rows.features[own], Views(), Training(keep_optimizer=False), cell.seed)
        for index, own in enumerate(shards)
    ]


def print_table(done: dict[Cell, dict[str, float]]) -> None:
    """Mean and standard deviation over the seeds."""
    print("| clustering | partition | seeds | ACC | NMI | ARI | CPU s | kB down | kB up | rounds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for head, partition in dict.fromkeys(cell[:2] for cell in done):
        rows = [row for cell, row in done.items() if cell[:2] == (head, partition)]
        scores = " | ".join(spread([row[name] for row in rows]) for name in ("acc", "nmi", "ari"))
        seconds, down, up, count = (
            statistics.mean(row[name] for row in rows) for name in ("seconds", "down", "up", "rounds")
        )
        costs = f"{seconds:.1f} | {down / 1000:.0f} | {up / 1000:.0f} | {count:.0f}"
        print(f"| `{head}` | {partition} | {len(rows)} | {scores} | {costs} |")


def spread(values: list[float]) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0:.3f}"


if __name__ == "__main__":
    main()
