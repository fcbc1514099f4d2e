"""t-SNE of the cluster projector's outputs before, during and after training, as in the paper's figures.

It is computed once per cell, then drawn from a file.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmcc.config import Config, load
from fedmcc.errors import InputError
from fedmcc.evaluation.clustering import score
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import select
from fedmcc.reproduction.captions import column_name
from fedmcc.reproduction.cells import TSNE_FILE, Cell
from fedmcc.reproduction.table_spec import Table
from fedmcc.runs.build import Trained, build_network, reopen
from fedmcc.runs.checkpoints import load_network, load_state, save_state
from fedmcc.runs.resolve import stages
from fedmcc.storage.atomic_files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADINGS = ("cell", "when", "cluster", "class", "x", "y")
MAX_IMAGES = 2_000  # t-SNE of more takes minutes
DRAWN_SHARES = (0.1, 0.5)  # of the rounds: the paper shows 10 and 50 of 100
TITLES = {"before": "before training", "after": "after training"}


class Point(NamedTuple):
    """An image in the plane."""

    cell: str
    when: str
    cluster: int
    label: str
    x: float
    y: float


def drawn_rounds(config: Config) -> list[int]:
    """The rounds during training that are drawn; only stages that train the encoder are counted."""
    count = _encoder_rounds(config)
    return sorted({round(share * count) for share in DRAWN_SHARES} - {0, count})


def _encoder_rounds(config: Config) -> int:
    training = [stage for stage in stages(config) if {"online", "online.encoder"} & {*stage.trained}]
    return sum(stage.rounds for stage in training)


def keep_network(cell: Cell) -> None:
    """Save the network of a running cell if its last finished round is drawn."""
    progress = cell.run.read_json("resume/progress.json")
    if progress.get("rows") in drawn_rounds(cell.config):
        model = load_state(cell.run.resume_folder / progress["model"])
        save_state(_round_file(cell, progress["rows"]), select(model, ("online",)))


def _round_file(cell: Cell, round: int) -> Path:
    return cell.run.model_file.with_name(f"round-{round:06}.safetensors")


def write_points(cell: Cell) -> dict[str, float]:
    """Write the t-SNE of a finished cell at each drawn round to its folder; returns the NMI at each."""
    from fedmcc.evaluation.tsne import embed

    trained = reopen(cell.run)
    images = trained.scorer.images
    rows = np.linspace(0, len(images) - 1, min(MAX_IMAGES, len(images))).round().astype(int)
    labels = [""] * len(rows) if images.labels is None else [str(label) for label in images.labels[rows]]
    lines, scores = [",".join(HEADINGS[1:])], {}
    for when, net in _networks(cell, trained):
        assignments = _assignments(trained, net)
        clusters = assignments.argmax(axis=1)
        points = zip(clusters[rows], labels, embed(assignments[rows], cell.seed), strict=True)
        lines += [f"{when},{cluster},{label},{x:.4f},{y:.4f}" for cluster, label, (x, y) in points]
        if (scored := score(images.labels, clusters)) is not None:
            scores[when] = scored.nmi
    write_atomically(cell.path / TSNE_FILE, "\n".join(lines) + "\n")
    return _named(scores, cell.config)


def _assignments(trained: Trained, net: Network) -> np.ndarray:
    """The outputs of the cluster projector, which a cell of this protocol has."""
    assignments = trained.scorer.extract(net.online).assignments
    if assignments is None:
        raise InputError("The method has no cluster projector: choose one such as fedmcc or mcc.")
    return assignments


def _named(scores: dict[str, float], config: Config) -> dict[str, float]:
    """NMI before and after training, and after half the rounds, where the paper prints it."""
    half = f"round {round(0.5 * _encoder_rounds(config))}"
    names = {"before": "nmi_before", half: "nmi_half", "after": "nmi_after"}
    return {names[when]: value for when, value in scores.items() if when in names}


def _networks(cell: Cell, trained: Trained) -> Iterator[tuple[str, Network]]:
    """The networks before, during and after training; use each before asking for the next."""
    yield "before", _initial_network(cell, trained)
    for number in drawn_rounds(cell.config):
        path = _round_file(cell, number)
        if path.exists():
            load_network(trained.net, path)
            yield f"round {number}", trained.net
    load_network(trained.net, cell.run.model_file)
    yield "after", trained.net


def _initial_network(cell: Cell, trained: Trained) -> Network:
    """The network as training started with it, which `reopen` does not build."""
    config = load(cell.run.config_file, [f"device={trained.config.general.device}"])
    return build_network(config, trained.scorer.images.images.shape[1])


def read_points(table: Table, cells: Sequence[Cell]) -> list[Point]:
    """The points of all finished cells."""
    points = []
    for cell in (cell for cell in cells if cell.done):
        column = column_name(table.columns[cell.column], cells)
        name = f"{table.rows[cell.row].name}, {column}, seed {cell.seed}"
        with (cell.path / TSNE_FILE).open() as file:
            points += [
                Point(
                    name,
                    line["when"],
                    int(line["cluster"]),
                    line["class"],
                    float(line["x"]),
                    float(line["y"]),
                )
                for line in csv.DictReader(file)
            ]
    return points


def draw(figure: "Figure", points: Sequence[Point]) -> None:
    """Draw a row of panels per cell, one for each moment, coloured by cluster."""
    names = list(dict.fromkeys(point.cell for point in points))
    moments = list(dict.fromkeys(point.when for point in points))
    colours = "tab20" if max(point.cluster for point in points) >= 10 else "tab10"
    figure.set_size_inches(4 * len(moments), 4 * len(names))
    panels = figure.subplots(len(names), len(moments), squeeze=False)
    for name, row in zip(names, panels, strict=True):
        for when, axes in zip(moments, row, strict=True):
            shown = [point for point in points if (point.cell, point.when) == (name, when)]
            axes.scatter(
                [point.x for point in shown],
                [point.y for point in shown],
                c=[point.cluster for point in shown],
                cmap=colours,
                s=4,
                rasterized=True,
            )
            axes.set(title=f"{name}\n{TITLES.get(when, when)}", xticks=[], yticks=[])
