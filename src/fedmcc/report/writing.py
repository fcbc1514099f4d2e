"""From run directories to one HTML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmcc.errors import InputError
from fedmcc.files import write_output
from fedmcc.report import landscape
from fedmcc.report.clusters import class_colours, describe
from fedmcc.report.colours import NOTHING, palette
from fedmcc.report.gallery import hang
from fedmcc.report.landscape import Landscape
from fedmcc.report.page import Pictured, render
from fedmcc.report.reading import Assigned, Facts, read
from fedmcc.report.thumbnails import sheet, thumbnail

if TYPE_CHECKING:
    from fedmcc.assembly import Experiment

FILE = "report.html"


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    images: bool = True,
    experiment: "Experiment | None" = None,
) -> Path:
    """One run in full, or several compared; returns where the page is.

    `experiment` is that of the run, where its images and network are in memory already.
    """
    facts = [read(path) for path in paths]
    if len(facts) == 1:
        target = out or paths[0] / FILE
        write_output(target, render(facts[0], picture(facts[0], images, experiment)))
        return target
    from fedmcc.report.comparing import compare

    target = out or Path(FILE)
    write_output(target, compare(facts))
    return target


def picture(facts: Facts, images: bool, experiment: "Experiment | None" = None) -> Pictured:
    """What is to be seen of the images, as far as they and the network can be found."""
    kept = landscape.load(facts.run)
    if not images and kept is not None and facts.assigned is not None:
        return Pictured(facts.assigned, _map(facts, facts.assigned, kept))
    try:
        return _seen(facts, images, experiment)
    except (InputError, OSError, ArithmeticError) as error:
        complaint = f"Images cannot be shown. {error}"
        drawn = None if kept is None or facts.assigned is None else _map(facts, facts.assigned, kept)
        return Pictured(facts.assigned, drawn, complaint=complaint)


def _seen(facts: Facts, images: bool, experiment: "Experiment | None") -> Pictured:
    from fedmcc.report.sight import look  # torch takes a second, which a comparison need not wait for

    sight = look(facts, experiment)
    drawn = _map(facts, sight.assigned, sight.landscape)
    if not images:
        return Pictured(sight.assigned, drawn)
    some = np.stack([sight.images.images[row] for row in sight.landscape.rows])
    drawn |= {
        "sheet": sheet(some)._asdict(),
        "names": [sight.assigned.names[row] for row in sight.landscape.rows],
    }
    clusters = describe(sight.assigned, facts.config.get("clusters") or 0)
    return Pictured(
        assigned=sight.assigned,
        map=drawn,
        cards=hang(sight.images, sight.assigned, sight.landscape, clusters),
        views=[[thumbnail(tile) for tile in row] for row in sight.views],
    )


def located(facts: Facts) -> tuple[Assigned, Landscape]:
    """Cluster and place of the images, from an earlier report or by looking at them again."""
    kept = landscape.load(facts.run)
    if kept is not None and facts.assigned is not None:
        return facts.assigned, kept
    from fedmcc.report.sight import look

    sight = look(facts)
    return sight.assigned, sight.landscape


def _map(facts: Facts, assigned: Assigned, seen: Landscape) -> dict[str, Any]:
    """The points with their cluster, label and client, and the names and colours of these."""
    rows = seen.rows
    clusters = describe(assigned, facts.config.get("clusters") or 0)
    by_number = sorted(clusters, key=lambda cluster: cluster.number)
    modes = [
        {
            "key": "cluster",
            "names": [str(cluster.number) for cluster in by_number],
            "colours": [cluster.colour for cluster in by_number],
            "of": assigned.clusters[rows].tolist(),
        }
    ]
    if assigned.labels is not None:
        modes.append(
            {
                "key": "label",
                "names": [*assigned.classes, "none"],
                "colours": [*class_colours(clusters, len(assigned.classes)), NOTHING],
                "of": [
                    int(label) if label >= 0 else len(assigned.classes) for label in assigned.labels[rows]
                ],
            }
        )
    if facts.shares is not None and facts.scored_itself and len(facts.shares.clients) > 1:
        names = list(facts.shares.clients)
        owners = facts.shares.owners()
        if len(owners) == len(assigned):
            found = {"names": names, "colours": palette(len(names)), "of": owners[rows].tolist()}
            modes.append({"key": "client", **found})
    sure = None if assigned.confidence is None else [round(float(c), 3) for c in assigned.confidence[rows]]
    return {
        "x": [round(float(x), 2) for x in seen.points[:, 0]],
        "y": [round(float(y), 2) for y in seen.points[:, 1]],
        "modes": modes,
        "confidence": sure,
        "total": len(assigned),
        "sheet": None,
        "names": None,
    }
