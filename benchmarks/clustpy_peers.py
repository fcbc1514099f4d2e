"""ClustPy's AE, DEC, IDEC and VaDE on the images of results/centralized.md: accuracy and CPU seconds.

ClustPy needs torchvision, so it runs in an environment of its own, on images that this package writes:

    python3.11 -m venv .venv-clustpy
    .venv-clustpy/bin/pip install torch==2.13.0 scikit-learn matplotlib pandas tqdm  # the CPU build of torch
    .venv-clustpy/bin/pip install --no-deps torchvision==0.28.0 clustpy==0.0.3
    python -c "import numpy, fedmcc; set = fedmcc.load_dataset('mnist', limit=4000); \
numpy.savez('mnist.npz', images=set.images, labels=set.labels)"
    .venv-clustpy/bin/python benchmarks/clustpy_peers.py mnist.npz [--seeds 1] [--epochs 14 6] [--only DEC]

The networks are ClustPy's defaults, fully connected layers of 500, 500, 2,000 and 10 units; epochs are those
of the table, unless others are given. ClustPy's own defaults are 100 and 150.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from clustpy.deep import DEC, IDEC, VaDE, get_trained_network
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

CLUSTERS = 10
Labels = NDArray[np.int64]
Peer = Callable[[NDArray[np.float32], int, int, int], Labels]  # rows, epochs of both stages, seed


def autoencoder(rows: NDArray[np.float32], first: int, second: int, seed: int) -> Labels:
    """An autoencoder, then k-means of its codes; both stages train the autoencoder."""
    network = get_trained_network(data=rows, n_epochs=first + second, batch_size=256, random_state=seed)
    with torch.no_grad():
        codes = network.encode(torch.from_numpy(rows)).numpy()
    labels: Labels = KMeans(CLUSTERS, n_init=20, random_state=seed).fit(codes).labels_.astype(np.int64)
    return labels


def deep(kind: type) -> Peer:
    """One of ClustPy's estimators."""

    def fit(rows: NDArray[np.float32], first: int, second: int, seed: int) -> Labels:
        epochs = {"pretrain_epochs": first, "clustering_epochs": second}
        labels: Labels = kind(CLUSTERS, **epochs, random_state=seed).fit(rows).labels_.astype(np.int64)
        return labels

    return fit


PEERS: dict[str, Peer] = {"AE": autoencoder, "DEC": deep(DEC), "IDEC": deep(IDEC), "VaDE": deep(VaDE)}


def accuracy(labels: Labels, found: Labels) -> float:
    """Share of images in the cluster that the best matching gives their class."""
    counts = np.zeros((CLUSTERS, CLUSTERS))
    np.add.at(counts, (found, labels), 1)
    return float(counts[linear_sum_assignment(-counts)].sum() / len(labels))


def main() -> None:
    """Run each peer with each seed and print a line of JSON for each."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("images", type=Path)
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--epochs", type=int, nargs=2, default=(14, 6), metavar=("FIRST", "SECOND"))
    arguments.add_argument("--only", choices=PEERS, nargs="*", default=[*PEERS])
    given = arguments.parse_args()
    torch.set_num_threads(1)
    with np.load(given.images, allow_pickle=False) as stored:
        images, labels = stored["images"], stored["labels"].astype(np.int64)
    rows = images.reshape(len(images), -1).astype(np.float32) / 255
    for seed in range(given.seeds):
        for name in given.only:
            start = time.process_time()
            found = PEERS[name](rows, *given.epochs, seed)
            seconds = time.process_time() - start
            scores = {"acc": accuracy(labels, found), "nmi": normalized_mutual_info_score(labels, found)}
            print(json.dumps({"peer": name, "seed": seed, "seconds": round(seconds, 1)} | scores), flush=True)


if __name__ == "__main__":
    main()
