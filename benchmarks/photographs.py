"""A folder of photographs as people have it: makes one of CIFAR-10, and scores a run on it.

Of 3,000 JPEG files of mixed sizes ten are damaged. The classes are in a table beside the folder, where no
command reads them.

python benchmarks/photographs.py make FOLDER [--root DATA]
fedmcc cluster FOLDER --time 10m --out RUN
python benchmarks/photographs.py score RUN FOLDER
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.cluster import KMeans

from fedmcc import load_dataset
from fedmcc.evaluation.clustering import score as cluster_scores

FILES, DAMAGED = 3000, 10
SIDES = (80, 480)  # pixels of the shorter side
RATIOS = (1.0, 4 / 3, 3 / 2)  # of the longer side to the shorter one
QUALITIES = (60, 95)
PIXELS_SIDE = 32  # of the images that k-means on pixels gets
TABLE = "-classes.csv"  # after the name of the folder


def main() -> None:
    """Make the folder, or score a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    making, scoring = steps.add_parser("make"), steps.add_parser("score")
    making.add_argument("folder", type=Path)
    making.add_argument("--root", type=Path, help="the folder of CIFAR-10")
    scoring.add_argument("run", type=Path)
    scoring.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.step == "make":
        make(options.folder, options.root)
    else:
        print(json.dumps(score(options.run, options.folder), indent=1))


def make(folder: Path, root: Path | None) -> None:
    """Write the files, and their classes in a table beside the folder."""
    draw = np.random.default_rng(0)
    images = load_dataset("cifar10", root=root)
    assert images.labels is not None
    rows = draw.choice(len(images), FILES, replace=False)
    damaged = set(draw.choice(FILES, DAMAGED, replace=False).tolist())
    folder.mkdir(parents=True)
    table = []
    for number, row in enumerate(rows):
        path = folder / f"IMG_{number:04}.jpg"
        write_photograph(path, images.images[row].transpose(1, 2, 0), draw)
        if number in damaged:
            damage(path, number % 3)
        table.append((path.name, int(images.labels[row]), int(number in damaged)))
    with classes_file(folder).open("w", newline="") as file:
        csv.writer(file).writerows([("image", "class", "damaged"), *table])


def write_photograph(path: Path, pixels: np.ndarray, draw: np.random.Generator) -> None:
    """Enlarge an image to a random size, cropped to a random ratio of sides, upright or wide."""
    side, ratio = int(draw.integers(SIDES[0], SIDES[1] + 1)), float(draw.choice(RATIOS))
    large = Image.fromarray(pixels).resize((round(side * ratio),) * 2, Image.Resampling.BICUBIC)
    border = (large.width - side) // 2
    box = (border, 0, border + side, large.height)
    if draw.random() < 0.5:
        box = (0, border, large.width, border + side)
    large.crop(box).save(path, quality=int(draw.integers(*QUALITIES)))


def damage(path: Path, kind: int) -> None:
    """Replace a file by nothing, by its first half, or by text."""
    content = path.read_bytes()
    path.write_bytes((b"", content[: len(content) // 2], b"This was a photograph.\n")[kind])


def score(run: Path, folder: Path) -> dict[str, object]:
    """Scores of the clusters of a run, and of k-means on pixels with as many clusters."""
    with classes_file(folder).open(newline="") as file:
        table = {row["image"]: row for row in csv.DictReader(file)}
    with (run / "assignments.csv").open(newline="") as file:
        clusters = {row["image"]: int(row["cluster"]) for row in csv.DictReader(file)}
    names, count = sorted(clusters), len(set(clusters.values()))
    classes = np.array([int(table[name]["class"]) for name in names])
    pixels = np.stack([small(folder / name) for name in names])
    seeds = [KMeans(count, n_init=10, random_state=seed).fit_predict(pixels) for seed in range(3)]
    return {
        "images": len(names),
        "damaged and clustered": sum(int(table[name]["damaged"]) for name in names),
        "clusters": count,
        "run": measures(classes, np.array([clusters[name] for name in names])),
        "k-means on pixels, seeds 0 to 2": [measures(classes, assigned) for assigned in seeds],
    }


def small(path: Path) -> np.ndarray:
    """The pixels of a file, scaled to a small square."""
    with Image.open(path) as image:
        scaled = image.convert("RGB").resize((PIXELS_SIDE, PIXELS_SIDE), Image.Resampling.BICUBIC)
    return np.asarray(scaled, dtype=np.float32).ravel() / 255


def measures(classes: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """ACC, NMI and ARI."""
    scores = cluster_scores(classes, clusters)
    assert scores is not None
    return {name: round(value, 3) for name, value in scores._asdict().items()}


def classes_file(folder: Path) -> Path:
    """The table of classes of a folder of photographs."""
    return folder.with_name(folder.name + TABLE)


if __name__ == "__main__":
    main()
