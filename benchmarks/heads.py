"""Clusterings of precomputed features, such as those of a pretrained encoder, in five simulated clients.

The file has `features` (a row per image) and `labels`, which only score. The stages, rounds, checks and
messages are those of a run; only the encoder is left out. Finished cells are read from the JSON lines.

python benchmarks/heads.py FEATURES.npz --out heads.jsonl [--seeds 3] [--head neighbours:rounds=20 ...]
"""

import argparse
import json
import statistics
import time
import tomllib
from collections.abc import Iterator
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

HEADS = ("pooled", "kmeans:axes=0.0", "kmeans", "lloyd:unit=true", "spectral", "neighbours")
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


def main() -> None:
    """Measure the missing cells and print a table."""
    options = read_options()
    set_up_torch(1)
    with np.load(options.features) as file:
        features, labels = file["features"].astype(np.float32), file["labels"].astype(np.int64)
    done = read_rows(options.out)
    for seed in range(options.seeds):
        for partition in PARTITIONS:
            for head in options.head or HEADS:
                cell = Cell(head, partition, seed)
                if cell not in done:
                    done[cell] = measure(cell, features, labels)
                    with options.out.open("a") as out:
                        out.write(json.dumps({"cell": cell, **done[cell]}) + "\n")
    print_table(done)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--head", action="append", help="a clustering, such as kmeans:axes=0.0,excess=3.0")
    return parser.parse_args()


def read_rows(path: Path) -> dict[Cell, dict[str, float]]:
    """The cells that were measured before."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {Cell(*row.pop("cell")): row for row in rows}


def measure(cell: Cell, features: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores, CPU seconds, and bytes per client of a cell."""
    start, clusters = time.process_time(), len(np.unique(labels))
    if cell.head == "pooled":
        assigned = kmeans.fit(kmeans.unit_rows(features), clusters, cell.seed).labels_
        traffic = {"down": 0.0, "up": 0.0, "rounds": 0.0}
    else:
        assigned, traffic = federate(cell, features, labels, clusters)
    seconds = time.process_time() - start
    scores = {"acc": accuracy(labels, assigned), "nmi": nmi(labels, assigned), "ari": ari(labels, assigned)}
    return {**scores, "seconds": seconds, **traffic}


def federate(
    cell: Cell, features: np.ndarray, labels: np.ndarray, clusters: int
) -> tuple[np.ndarray, dict[str, float]]:
    """The clusters by a federation of five clients, and its traffic per client."""
    net, clustering = Network(Branch(nn.Flatten())), make_clustering(cell.head)
    clustering.extend(net, features.shape[1], clusters)
    initialise(net, generator(cell.seed, "weights"))
    progress, policy = Progress(detached(net.state_dict())), Policy(Federation(), cell.seed)
    finished: list[Round] = []
    with Embedded(net, clients_of(cell, features, labels)) as engine:
        for stage in clustering.stages():
            for event in rounds(stage, progress, engine, range(5), policy):
                if isinstance(event, Round):
                    finished.append(event)
                    progress = event.progress
    copy_into(net, progress.model)
    with torch.no_grad():
        assigned = net.eval().online.assign(torch.from_numpy(features)).argmax(dim=1).numpy()
    down, up = (sum(getattr(each, f"bytes_{way}") for each in finished) / 5 for way in ("down", "up"))
    return assigned, {"down": down, "up": up, "rounds": float(len(finished))}


def make_clustering(head: str) -> Any:
    """The clustering with its options; each is a TOML value."""
    name, _, given = head.partition(":")
    return CLUSTERINGS[name](**tomllib.loads(given.replace(",", "\n")))


def clients_of(cell: Cell, features: np.ndarray, labels: np.ndarray) -> list[Client]:
    """Five clients with their rows."""
    options = PartitionOptions(name=PARTITIONS[cell.partition], clients=5)
    held = ImageSet(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, tuple(map(str, np.unique(labels))))
    shards = partition_images(held, options, derive(cell.seed, "partition"))
    return [
        FeatureClient(index, features[rows], Views(), Training(keep_optimizer=False), cell.seed)
        for index, rows in enumerate(shards)
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
