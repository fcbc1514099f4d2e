"""Cluster a folder of images: python examples/own_images.py PICTURES --clusters 10

Without a folder, the script first creates one with 200 coloured shapes.
"""

import argparse
from pathlib import Path
from tempfile import mkdtemp

from PIL import Image

import fedmcc


def main() -> None:
    """Run on the folder and print where the results are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, nargs="?", help="a folder; any formats and sizes")
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="the run directory [runs/folder-METHOD-001]")
    options = parser.parse_args()

    config = fedmcc.load_config(
        {
            "clusters": options.clusters,
            "data": {"name": "folder", "root": options.images or draw_shapes(), "size": 32},
            "views": {"preset": "photo"},  # or medical, fashion, digits: `fedmcc views PICTURES --out a.png`
            "method": {"rounds": options.epochs},
            "training": {"batch_size": 64},
        }
    )
    run = fedmcc.run(config, options.out)
    sizes = run.read_json("scores.json")["sizes"]
    print(f"The clusters have {', '.join(map(str, sizes))} images.")
    print(f"The cluster of every image is in {run.assignments_file}.")


def draw_shapes() -> Path:
    """A new folder with 200 coloured shapes."""
    folder = Path(mkdtemp(prefix="shapes-", dir="."))
    for number, pixels in enumerate(fedmcc.load_dataset("synthetic", samples=200).images):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"shape-{number:03}.png")
    print(f"No folder given: created 200 shapes in {folder}.")
    return folder


if __name__ == "__main__":
    main()
