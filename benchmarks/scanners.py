"""Clients whose images look different: other devices, as between hospitals; with and without other classes.

Each run trains `fedmcc-plus` once and clusters its features in three ways: by images alone, always also by
who holds them (docs/decisions/0031), and by the rule that decides between the two (docs/decisions/0032).
Each run is one line of JSON in the file given with --runs; runs that it already holds are not repeated.

python benchmarks/scanners.py [--runs FILE] [--seeds 3] [--root FOLDER] [--report results/scanners.md]
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy import ndimage

from fedmcc import config
from fedmcc.data.base import ImageSet
from fedmcc.federation.rounds import Progress
from fedmcc.methods import federated_spectral
from fedmcc.numerics.state_dicts import copy_into, detached
from fedmcc.runs.build import Experiment, assemble
from fedmcc.training.torch_setup import set_up_torch
from recluster import finish

CLIENTS, CLASSES, SIZE = 5, 10, 28
SETS = {"digits": 1_797, "mnist": 2_000, "kmnist": 4_000}  # images
SOURCES: dict[str, dict[str, str]] = {"digits": {}, "mnist": {}, "kmnist": {"split": "test"}}
LOOKS = {
    "same": "one device",
    "mild": "contrast, blur, noise, brightness",
    "geometry": "rotation and scale",
    "strong": "inverted, faint, noisy, thick",
}
PARTITIONS = {"iid": "IID", "dirichlet": "Dirichlet .3", "by_class": "two classes each"}
WAYS = {"by_images": "by images alone", "by_holders": "always by who holds them", "by_rule": "by the rule"}
RUNS = Path("build/scanners.jsonl")
SCHEDULE: dict[str, Any] = {
    "threads": 1,
    "device": "cpu",
    "clusters": CLASSES,
    "views": {"preset": "digits", "size": SIZE},
    "method": {"name": "fedmcc-plus", "rounds": 16, "hidden": 512},
    "partition": {"name": "by_group"},
    "training": {"batch_size": 64, "learning_rate": 1e-3},
    "evaluation": {"every": 1000},
}
INTRODUCTION = """# Clients whose images look different

`OMP_NUM_THREADS=1 python benchmarks/scanners.py --root FOLDER` writes this page: {runs} runs of
{seconds:.0f} CPU seconds (median), one thread of an AMD EPYC. It continues with missing runs. Five
clients; the images of each are changed as another device would. "mild": {mild};
"geometry": {geometry}; "strong": {strong}. `fedmcc-plus` with `convnet`,
16 rounds of one epoch; digits 1,797 images, MNIST 2,000, KMNIST 4,000. One training per run and three
clusterings of its features. ACC of the
head: mean ± sample deviation over n seeds; the last column says how often the rule looked at who holds the
images. [Decision 32](../docs/decisions/0032-devices-are-not-classes.md) has what follows from it. The two
limits of the rule were chosen on such runs, labels in view.
"""

Pixels = np.ndarray  # (images, height, width) in [0, 1]
Device = Callable[[Pixels], Pixels]


class Cell(NamedTuple):
    """One run."""

    images: str
    look: str
    partition: str
    seed: int


def main() -> None:
    """Run what is missing and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--root", type=Path, help="folder with mnist and kmnist")
    parser.add_argument("--report", type=Path, default=Path("results/scanners.md"))
    options = parser.parse_args()
    options.runs.parent.mkdir(parents=True, exist_ok=True)
    set_up_torch(1)
    for cell in cells(options.seeds):
        if cell not in dict(read(options.runs)):
            line = json.dumps({**cell._asdict(), **measure(cell, options.root)})
            with options.runs.open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)
    options.report.write_text(report(dict(read(options.runs))))


def cells(seeds: int) -> Iterator[Cell]:
    """All runs, one seed after the other."""
    for seed, name, look, partition in itertools.product(range(seeds), SETS, LOOKS, PARTITIONS):
        if name != "kmnist" or look in {"same", "mild"}:
            yield Cell(name, look, partition, seed)


def measure(cell: Cell, root: Path | None) -> dict[str, Any]:
    """Train once, and score the three clusterings."""
    started, experiment = time.process_time(), build(cell, root)
    *training, merging = experiment.stages
    progress = Progress(detached(experiment.net.state_dict()))
    for stage in training:
        progress = finish(experiment, stage, progress)
    scores, asked = {}, mock.Mock(side_effect=federated_spectral.classes_differ)
    decisions = {
        "by_images": mock.Mock(return_value=False),
        "by_holders": mock.Mock(return_value=True),
        "by_rule": asked,
    }
    for way, decision in decisions.items():
        with mock.patch.object(federated_spectral, "classes_differ", decision):
            copy_into(experiment.net, finish(experiment, merging, progress).model)
        score = experiment.scorer.round(experiment.net.online, with_head=True, with_kmeans=False)
        scores[way] = score["acc"]
    by_holders = asked.called and federated_spectral.classes_differ(*asked.call_args.args)
    return {**scores, "used_holders": by_holders, "seconds": time.process_time() - started}


def build(cell: Cell, root: Path | None) -> Experiment:
    """The federation of a run."""
    table = {**SCHEDULE, "seed": cell.seed, "data": {"name": cell.images, **SOURCES[cell.images]}}
    if root and cell.images != "digits":
        table["data"]["root"] = str(root)
    settings = config.parse(table)
    images, draw = settings.data.load().take(slice(SETS[cell.images])), np.random.default_rng(cell.seed)
    groups = divided(images.labels, cell.partition, draw)
    seen = scanned(pixels(images), groups, devices(cell.look, draw))
    rows = np.rint(seen.clip(0, 1) * 255).astype(np.uint8)[:, None]
    return assemble(
        settings, ImageSet(rows, images.labels, images.classes, groups=groups, owners=tuple("abcde"))
    )


def divided(labels: np.ndarray, partition: str, draw: np.random.Generator) -> np.ndarray:
    """The client of each image."""
    if partition == "iid":
        return draw.permutation(len(labels)) % CLIENTS
    if partition == "by_class":
        return draw.permutation(CLASSES)[labels] // (CLASSES // CLIENTS)
    groups = np.empty(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        rows = draw.permutation(np.flatnonzero(labels == label))
        ends = (draw.dirichlet([0.3] * CLIENTS).cumsum() * len(rows)).astype(int)
        for client, held in enumerate(np.split(rows, ends[:-1])):
            groups[held] = client
    return groups


def pixels(images: ImageSet) -> Pixels:
    """Images in grey of one size, between 0 and 1."""
    grey = images.images.mean(axis=1) / 255
    return ndimage.zoom(grey, (1, SIZE / grey.shape[1], SIZE / grey.shape[2]), order=1)


def scanned(images: Pixels, groups: np.ndarray, looks: list[Device]) -> Pixels:
    """The images as the device of their client records them."""
    seen = np.empty_like(images)
    for client, device in enumerate(looks):
        seen[groups == client] = device(images[groups == client])
    return seen


def devices(look: str, draw: np.random.Generator) -> list[Device]:
    """The device of each client."""

    def noise(images: Pixels, scale: float) -> Pixels:
        return images + scale * draw.standard_normal(images.shape)

    def blurred(images: Pixels, width: float) -> Pixels:
        return ndimage.gaussian_filter(images, (0, width, width))

    return {
        "same": [lambda v: v] * CLIENTS,
        "mild": [
            lambda v: v,
            lambda v: 0.6 * v + 0.1,
            lambda v: blurred(v, 0.8),
            lambda v: noise(v, 0.08),
            lambda v: v**0.5,
        ],
        "strong": [
            lambda v: v,
            lambda v: 1 - v,
            lambda v: 0.5 * blurred(v, 1.2) + 0.2,
            lambda v: noise(0.6 * v + 0.2, 0.15),
            lambda v: ndimage.grey_dilation(v, (1, 3, 3)),
        ],
        "geometry": [turned(12 * (c - 2), (0.8, 1.0, 1.2, 0.9, 1.1)[c]) for c in range(CLIENTS)],
    }[look]


def turned(degrees: float, scale: float) -> Device:
    """A device that turns and scales around the middle."""
    angle, middle = np.deg2rad(degrees), (SIZE - 1) / 2
    map_ = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shift = middle - map_ @ [middle, middle]
    return lambda v: np.stack([ndimage.affine_transform(each, map_, shift, order=1) for each in v])


def read(path: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """The runs in a file of JSON lines."""
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        yield Cell(*(row[name] for name in Cell._fields)), row


def report(runs: dict[Cell, dict[str, Any]]) -> str:
    """The Markdown page."""
    seconds = statistics.median(row["seconds"] for row in runs.values())
    lines = [INTRODUCTION.format(runs=len(runs), seconds=seconds, **LOOKS)]
    lines += [f"| images | look | clients | {' | '.join(WAYS.values())} | used holders |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, look, partition in itertools.product(SETS, LOOKS, PARTITIONS):
        rows = [row for cell, row in runs.items() if cell[:3] == (name, look, partition)]
        if rows:
            scores = " | ".join(spread([row[way] for row in rows]) for way in WAYS)
            used = f"{sum(row['used_holders'] for row in rows)} of {len(rows)}"
            lines.append(f"| {name} | {look} | {PARTITIONS[partition]} | {scores} | {used} |")
    means = " | ".join(f"**{statistics.mean(row[way] for row in runs.values()):.3f}**" for way in WAYS)
    return "\n".join([*lines, f"| **mean over all runs** | | | {means} | |"]) + "\n"


def spread(values: list[float]) -> str:
    """Mean ± sample deviation, and the number of seeds."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}, n={len(values)}"


if __name__ == "__main__":
    main()
