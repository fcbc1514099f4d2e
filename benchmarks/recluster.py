"""Clusters the features of trained encoders again: every clustering has the same features and clients.

The files are those of benchmarks/encoders.py, with `features`, `labels`, `client` (-1: with no client), and
`pretrained` if the encoder was.
Labels only score. A row per file, clustering and seed is added to the CSV; rows that it has are not repeated.

python benchmarks/recluster.py FILE... --out recluster.csv [--head informative] [--head kmeans:whiten=0.5]
"""

import argparse
import csv
import platform
import subprocess
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedmcc.evaluation.clustering import accuracy, nmi
from fedmcc.evaluation.features import at_owners
from fedmcc.federation.client import INFERENCE_BATCH, Client
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.methods import CLUSTERINGS
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics import kmeans
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.training.loop import Training
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import Views


class FeatureClient(Client):
    """A client whose images are features."""

    def _plain_batches(self, net: Network) -> Iterator[Tensor]:
        yield from torch.from_numpy(self.images).split(INFERENCE_BATCH)


class Features(NamedTuple):
    """The features of all images, their labels, and the client of each; -1 if none has it."""

    features: np.ndarray
    labels: np.ndarray
    client: np.ndarray
    pretrained: bool = False


def main() -> None:
    """Measure what the table lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--head", action="append", help="a clustering, such as informative:neighbours=0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clusters", type=int, default=10)
    options = parser.parse_args()
    set_up_torch(1)
    done = {tuple(row[:3]) for row in csv.reader(options.out.open())} if options.out.exists() else set()
    with options.out.open("a", newline="") as file:
        table = csv.writer(file)
        if not done:
            table.writerow(
                [
                    "cell",
                    "clustering",
                    "seed",
                    "commit",
                    "processor",
                    "unknown",
                    "own",
                    "further",
                    "nmi",
                    "own_nmi",
                    "cpu_seconds",
                ]
            )
        for seed in range(options.seeds):
            for path in options.files:
                for head in options.head or ["informative"]:
                    if (path.stem, head, str(seed)) not in done:
                        scores = measure(read(path), head, options.clusters, seed)
                        table.writerow([path.stem, head, seed, commit(), processor(), *scores])
                        file.flush()


def read(path: Path) -> Features:
    """The arrays of a file."""
    with np.load(path) as file:
        pretrained = "pretrained" in file.files
        return Features(file["features"].astype(np.float32), file["labels"], file["client"], pretrained)


def measure(data: Features, head: str, clusters: int, seed: int) -> list[float]:
    """ACC with unknown owner, at the own client, of the images of no client; NMI of both; seconds."""
    started, held = time.process_time(), data.client >= 0
    name, _, _ = head.partition(":")
    if name == "pooled":
        model = kmeans.fit(kmeans.unit_rows(data.features[held]), clusters, seed)
        unknown = own = model.predict(kmeans.unit_rows(data.features))
    else:
        net = federate(data, head, clusters, seed)
        features = torch.from_numpy(data.features)
        with torch.no_grad():
            unknown = net.online.assign(features).argmax(dim=1).numpy()
            own = at_owners(net.online, data.features, data.client).argmax(axis=1)
    seconds, labels = time.process_time() - started, data.labels
    further = accuracy(labels[~held], unknown[~held]) if (~held).any() else float("nan")
    pairs = ((labels[held], each[held]) for each in (unknown, own))
    (first, second) = pairs
    scores = [accuracy(*first), accuracy(*second), further, nmi(*first), nmi(*second)]
    return [*(round(float(score), 4) for score in scores), round(seconds, 2)]


def federate(data: Features, head: str, clusters: int, seed: int) -> Network:
    """A network whose head a federation of the clients has made."""
    net, clustering = Network(Branch(nn.Flatten())), make_clustering(head)
    net.online.encoder.pretrained = data.pretrained
    clustering.extend(net, data.features.shape[1], clusters)
    initialise(net, generator(seed, "weights"))
    progress, policy = Progress(detached(net.state_dict())), Policy(Federation(), seed)
    with Embedded(net, clients_of(data, seed)) as engine:
        for stage in clustering.stages():
            stage = replace(stage, seed=1000 * seed) if hasattr(stage, "seed") else stage
            for event in rounds(stage, progress, engine, range(len(engine.members)), policy):
                if isinstance(event, Round):
                    progress = event.progress
    copy_into(net, progress.model)
    return net.eval()


def make_clustering(head: str) -> Any:
    """The clustering with its options; each is a TOML value."""
    name, _, given = head.partition(":")
    return CLUSTERINGS[name](**tomllib.loads(given.replace(",", "\n")))


def clients_of(data: Features, seed: int) -> list[FeatureClient]:
    """A client for each number."""
    shards = [np.flatnonzero(data.client == client) for client in np.unique(data.client[data.client >= 0])]
    training = Training(keep_optimizer=False)
    return [
        FeatureClient(index, data.features[own], Views(), training, seed) for index, own in enumerate(shards)
    ]


def commit() -> str:
    """The commit of the code."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()


def processor() -> str:
    """The name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
