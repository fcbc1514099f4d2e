"""What the report of one run shows of its images."""

from typing import TYPE_CHECKING

from fedmcc.errors import InputError
from fedmcc.report.clusters import describe
from fedmcc.report.gallery import Album, build_cards
from fedmcc.report.map_cache import ImageMap, load_map
from fedmcc.report.map_draw import draw_map
from fedmcc.report.oddities import find_oddities
from fedmcc.report.page import ImageContent
from fedmcc.report.run_facts import Assignments, Facts
from fedmcc.report.thumbnails import sprite_sheet, thumbnail

if TYPE_CHECKING:
    from fedmcc.report.map_compute import RunImages
    from fedmcc.runs.build import Experiment


def load_or_compute_map(facts: Facts) -> tuple[Assignments, ImageMap]:
    """The clusters of a run and its map, which is computed unless an earlier report has cached it."""
    image_map = load_map(facts.run)
    if image_map is not None and facts.assignments is not None:
        return facts.assignments, image_map
    from fedmcc.report.map_compute import load_images

    loaded = load_images(facts, image_map)
    return loaded.assignments, loaded.image_map


def image_content(facts: Facts, images: bool, experiment: "Experiment | None") -> ImageContent:
    """What the page shows of the images; if they cannot be loaded, a warning and what is known without."""
    image_map = load_map(facts.run)
    if not images and image_map is not None and facts.assignments is not None:
        return _without_images(facts, image_map)
    try:
        # Importing torch takes a second: pages that do not need the network do not wait for it.
        from fedmcc.report.map_compute import load_images

        loaded = load_images(facts, image_map, experiment)
        return _with_images(facts, loaded, images)
    except (InputError, OSError, ArithmeticError) as error:
        return _without_images(facts, image_map, f"Images cannot be shown. {error}")


def _without_images(facts: Facts, image_map: ImageMap | None, warning: str | None = None) -> ImageContent:
    if facts.assignments is None:
        return ImageContent(warning=warning)
    clusters = describe(facts.assignments, facts.clusters, facts.cluster_names)
    drawn = None if image_map is None else draw_map(facts, facts.assignments, clusters, image_map)
    return ImageContent(facts.assignments, clusters, drawn, warning=warning)


def _with_images(facts: Facts, loaded: "RunImages", images: bool) -> ImageContent:
    assignments, image_map = loaded.assignments, loaded.image_map
    clusters = describe(assignments, facts.clusters, facts.cluster_names)
    drawn = draw_map(facts, assignments, clusters, image_map)
    if not images:
        return ImageContent(assignments, clusters, drawn)
    drawn["sheet"] = sprite_sheet(loaded.images.images, image_map.rows)._asdict()
    drawn["names"] = [assignments.names[row] for row in image_map.rows]
    drawn["similar"] = [image_map.similar(int(row)) for row in image_map.rows]
    album = Album(loaded.images, assignments, image_map, {cluster.number: cluster for cluster in clusters})
    return ImageContent(
        assignments,
        clusters,
        drawn,
        cards=build_cards(loaded.images, assignments, image_map, clusters),
        oddities=find_oddities(album, facts.duplicates),
        views=[[thumbnail(tile) for tile in row] for row in loaded.views],
    )
