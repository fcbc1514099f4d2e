"""Cluster a folder of your images: python examples/own_images.py PICTURES --clusters 10

Without a folder it draws one first, so that there is something to see.
"""

import argparse
from pathlib import Path

from PIL import Image

import fedmcc
from fedmcc import config
from fedmcc.data import load_dataset
from fedmcc.runs.directory import next_free


def main() -> None:
    """Run on the folder and say where the results are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, nargs="?", help="a folder; any formats and sizes")
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=next_free(Path("runs"), "own-images"))
    options = parser.parse_args()

    chosen = config.parse(
        {
            "clusters": options.clusters,
            "data": {"name": "folder", "root": options.images or drawn(), "size": 32},
            "views": {"preset": "photo"},  # or medical, fashion, digits: `fedmcc views PICTURES --out a.png`
            "method": {"name": "mcc", "rounds": options.epochs},
            "training": {"batch_size": 64},
        }
    )
    run = fedmcc.run(chosen, options.out)
    sizes = run.read_json("scores.json")["sizes"]
    print(f"The clusters have {', '.join(map(str, sizes))} images.")
    print(f"The cluster of every image is in {run.assignments_file}.")


def drawn() -> Path:
    """A folder of 200 coloured shapes."""
    folder = next_free(Path(), "shapes")
    folder.mkdir()
    for number, pixels in enumerate(load_dataset("synthetic", samples=200).images):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"shape-{number:03}.png")
    print(f"No folder given: drew 200 shapes in {folder}.")
    return folder


if __name__ == "__main__":
    main()
