"""Features of a data set by a pretrained encoder, as `benchmarks/heads.py` reads them.

The features are those that a run computes, resized as a run resizes; labels are stored to score. They are
computed through the cache of a run, so that a stopped computation continues.

python benchmarks/features.py cifar10 lite0 cifar10.npz --limit 10000 --root DATA
"""

import argparse
from pathlib import Path

import numpy as np
from fedmcc.networks.by_name import encoder_section

from fedmcc.config import parse
from fedmcc.data import load_dataset
from fedmcc.networks import native_size
from fedmcc.training.feature_files import feature_file
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import Views


def main() -> None:
    """Compute the features and write the file, which is complete or absent."""
    options = read_options()
    set_up_torch(options.threads)
    given = {name: getattr(options, name) for name in ("root", "split", "limit")}
    images = load_dataset(options.data, **{name: value for name, value in given.items() if value is not None})
    encoder = parse({"encoder": encoder_section(options.encoder)}).encoder
    size = native_size(encoder) or images.images.shape[2]
    file = feature_file(encoder.build(images.images.shape[1], size), images.images, Views(size=size))
    if file is None or images.labels is None:
        raise SystemExit(f"{options.data} has no images or no labels.")
    partial = options.out.with_suffix(".partial.npz")
    np.savez(partial, features=file.array(), labels=images.labels)
    partial.replace(options.out)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a data set, such as cifar10")
    parser.add_argument("encoder", help="an encoder, such as lite2, or a file of one")
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int, help="number of images, the first ones; all if left out")
    parser.add_argument("--root", type=Path, help="folder of the data set")
    parser.add_argument("--split", help="part of the data set, such as test")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
