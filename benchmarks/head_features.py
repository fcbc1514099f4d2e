"""Writes the features of a finished run to a file that benchmarks/heads.py reads.

The file has a row per training image: `features`, `labels`, the `pixels`, and the `client` that held it.

fedmcc run recipes/digits-fedmcc-plus.toml --out RUN
python benchmarks/head_features.py RUN features.npz
"""

import argparse
from pathlib import Path

import numpy as np

from fedmcc.runs.build import reopen
from fedmcc.runs.directory import Run


def main() -> None:
    """Encode the images of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    trained = reopen(Run(options.run))
    images = trained.scorer.images
    features = trained.scorer.extract(trained.net.online).features
    np.savez(
        options.out,
        features=features,
        labels=images.labels,
        pixels=images.images.reshape(len(images), -1),
        client=clients_of(options.run, len(images)),
    )


def clients_of(run: Path, count: int) -> np.ndarray:
    """The client that held each image."""
    client = np.full(count, -1)
    with np.load(run / "partition.npz") as partition:
        for name in (name for name in partition.files if name.startswith("rows_")):
            client[partition[name]] = int(name.removeprefix("rows_"))
    return client


if __name__ == "__main__":
    main()
