"""Features as points of a plane, before, during and after training: measured once, drawn from a file."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmcc.config import Config, load
from fedmcc.numerics.state_dicts import select
from fedmcc.reproduction.captions import heading
from fedmcc.reproduction.cells import PLANE, Cell
from fedmcc.reproduction.table_spec import Table
from fedmcc.runs.build import prepare, scorer_of
from fedmcc.runs.checkpoints import load_network, load_state, save_state
from fedmcc.runs.resolve import stages
from fedmcc.storage.atomic_files import write_atomically

HEADINGS = ("cell", "when", "class", "x", "y")
MOST = 2_000  # images: t-SNE of more takes minutes
DURING = (0.1, 0.5)  # of the rounds: the paper shows 10 and 50 of 100
TITLES = {"before": "before training", "after": "after training"}


class Point(NamedTuple):
    """An image in the plane."""

    cell: str
    when: str
    label: str
    x: float
    y: float


def moments(config: Config) -> list[int]:
    """The rounds between first and last whose features are drawn, among those that train the encoder."""
    training = [stage for stage in stages(config) if {"online", "online.encoder"} & {*stage.trained}]
    count = sum(stage.rounds for stage in training)
    return sorted({round(share * count) for share in DURING} - {0, count})


def keep(cell: Cell) -> None:
    """Put the network of a cell under way aside, if it stands at one of those rounds."""
    standing = cell.run.read_json("resume/progress.json")
    if standing.get("rows") in moments(cell.config):
        model = load_state(cell.run.resume_folder / standing["model"])
        save_state(_kept(cell, standing["rows"]), select(model, ("online",)))


def _kept(cell: Cell, round: int) -> Path:
    return cell.run.model_file.with_name(f"round-{round:06}.safetensors")


def measure(cell: Cell) -> None:
    """The t-SNE of a finished cell's features at each moment, into its folder."""
    from fedmcc.evaluation.tsne import embed

    experiment = prepare(load(cell.run.config_file))
    scorer, net = scorer_of(experiment.config, experiment.images), experiment.net
    chosen = np.linspace(0, len(scorer.images) - 1, min(MOST, len(scorer.images))).round().astype(int)
    labels = scorer.images.labels
    classes = [""] * len(chosen) if labels is None else [str(label) for label in labels[chosen]]
    lines = [",".join(HEADINGS[1:])]
    for when, path in _networks(cell):
        if path is not None:
            load_network(net, path)
        points = embed(scorer.extract(net.online).features[chosen], cell.seed)
        lines += [f"{when},{label},{x:.4f},{y:.4f}" for label, (x, y) in zip(classes, points, strict=True)]
    write_atomically(cell.path / PLANE, "\n".join(lines) + "\n")


def _networks(cell: Cell) -> list[tuple[str, Path | None]]:
    """Where the network of each moment lies; that of the first is built."""
    kept = [(f"round {number}", _kept(cell, number)) for number in moments(cell.config)]
    during = [(when, path) for when, path in kept if path.exists()]
    return [("before", None), *during, ("after", cell.run.model_file)]


def rows(table: Table, cells: Sequence[Cell]) -> list[Point]:
    """The points of all finished cells."""
    points = []
    for cell in (cell for cell in cells if cell.done):
        column = heading(table.columns[cell.column], cells)
        name = f"{table.rows[cell.row].name}, {column}, seed {cell.seed}"
        with (cell.path / PLANE).open() as file:
            points += [
                Point(name, line["when"], line["class"], float(line["x"]), float(line["y"]))
                for line in csv.DictReader(file)
            ]
    return points


def draw(figure: Any, table: Table, points: Sequence[Point]) -> None:
    """A line of panels per cell, a moment each, coloured by class."""
    names = list(dict.fromkeys(point.cell for point in points))
    moments = list(dict.fromkeys(point.when for point in points))
    labels = sorted({point.label for point in points}, key=lambda label: (len(label), label))
    figure.set_size_inches(4 * len(moments), 4 * len(names))
    for name, line in zip(names, figure.subplots(len(names), len(moments), squeeze=False), strict=True):
        for when, axes in zip(moments, line, strict=True):
            own = [point for point in points if (point.cell, point.when) == (name, when)]
            colours = [labels.index(point.label) for point in own]
            spot = {
                "c": colours,
                "cmap": "tab20" if len(labels) > 10 else "tab10",
                "s": 4,
                "rasterized": True,
            }
            axes.scatter([point.x for point in own], [point.y for point in own], **spot)
            axes.set(title=f"{name}\n{TITLES.get(when, when)}", xticks=[], yticks=[])
