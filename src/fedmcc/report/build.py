"""From run directories to one HTML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmcc.errors import InputError
from fedmcc.report import map_cache
from fedmcc.report.clusters import describe
from fedmcc.report.gallery import build_cards
from fedmcc.report.map_cache import Landscape
from fedmcc.report.map_draw import draw_map
from fedmcc.report.page import Pictured, render
from fedmcc.report.run_facts import Assigned, Facts, read
from fedmcc.report.thumbnails import sheet, thumbnail
from fedmcc.storage.atomic_files import write_output

if TYPE_CHECKING:
    from fedmcc.runs.build import Experiment

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
    paths = list({path.resolve(): path for path in paths}.values())  # each run counts once
    facts = [read(path) for path in paths]
    if len(facts) == 1:
        target = out or paths[0] / FILE
        write_output(target, render(facts[0], picture(facts[0], images, experiment)))
        return target
    from fedmcc.report.comparison import compare

    target = out or Path(FILE)
    write_output(target, compare(facts))
    return target


def picture(facts: Facts, images: bool, experiment: "Experiment | None" = None) -> Pictured:
    """What is to be seen of the images, as far as they and the network can be found."""
    kept = map_cache.load(facts.run)
    if not images and kept is not None and facts.assigned is not None:
        return Pictured(facts.assigned, draw_map(facts, facts.assigned, kept))
    try:
        return _seen(facts, images, experiment)
    except (InputError, OSError, ArithmeticError) as error:
        complaint = f"Images cannot be shown. {error}"
        drawn = None if kept is None or facts.assigned is None else draw_map(facts, facts.assigned, kept)
        return Pictured(facts.assigned, drawn, complaint=complaint)


def _seen(facts: Facts, images: bool, experiment: "Experiment | None") -> Pictured:
    from fedmcc.report.map_compute import look  # torch takes a second, which a comparison need not wait for

    sight = look(facts, experiment)
    drawn = draw_map(facts, sight.assigned, sight.landscape)
    if not images:
        return Pictured(sight.assigned, drawn)
    rows = sight.landscape.rows
    drawn |= {
        "sheet": sheet(sight.images.images, rows)._asdict(),
        "names": [sight.assigned.names[row] for row in rows],
    }
    clusters = describe(sight.assigned, facts.config.get("clusters") or 0)
    return Pictured(
        assigned=sight.assigned,
        map=drawn,
        cards=build_cards(sight.images, sight.assigned, sight.landscape, clusters),
        views=[[thumbnail(tile) for tile in row] for row in sight.views],
    )


def located(facts: Facts) -> tuple[Assigned, Landscape]:
    """Cluster and place of the images, from an earlier report or by looking at them again."""
    kept = map_cache.load(facts.run)
    if kept is not None and facts.assigned is not None:
        return facts.assigned, kept
    from fedmcc.report.map_compute import look

    sight = look(facts)
    return sight.assigned, sight.landscape
