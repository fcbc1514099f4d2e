"""The text and the tables of a page."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fedmcc.report.clusters import Cluster, describe
from fedmcc.report.gallery import Card, GalleryImage
from fedmcc.report.page import ImageContent, _client_rows, _refusals, render
from fedmcc.report.run_facts import Facts, read_run
from fedmcc.report.score_tiles import score_tiles
from fedmcc.runs.directory import Run


def test_sites_have_names_and_dropped_sites_reasons(written: Callable[..., Run]) -> None:
    run = written()
    (run.path / "partition.npz").unlink()  # a server has none
    sites = {"sites": {"0": "north", "1": "south", "2": "west"}, "reasons": {"2": "its connection was lost."}}
    row = {"stage": "second", "round": 2, "loss": 1.0, "seconds": 1.0, "participants": [0, 1]}
    run.log(row | {"refused": [], "dropped": [2], "bytes": {}, "bytes_down": 0, "bytes_up": 0, **sites})
    facts = read_run(run.path)
    assert [(entry["client"], entry["reason"]) for entry in _refusals(facts)] == [
        ("west", "Its connection was lost.")
    ]
    assert [(site["name"], site["dropped"]) for site in _client_rows(facts)] == [
        ("north", 0),
        ("south", 0),
        ("west", 1),
    ]


def clusters_of(facts: Facts) -> ImageContent:
    """The clusters of a run, without its images."""
    assert facts.assignments is not None
    return ImageContent(facts.assignments, describe(facts.assignments, facts.clusters))


def cells(page: str, section: str) -> list[str]:
    """The text of the table in a section."""
    content = page.partition(f'<section id="{section}">')[2].partition("</section>")[0]
    return re.findall(r"<td[^>]*>([^<]*)</td>", content)


def test_an_evaluation_has_deviations_of_several_seeds_only_and_names_the_scored_images(
    written: Callable[..., Run],
) -> None:
    run = written()
    one = {"mean": 0.5, "std": 0.0, "values": [0.5], "split": "all", "images": 400}
    two = {"mean": 0.5, "std": 0.125, "values": [0.375, 0.625], "split": "held-out fifth", "images": 80}
    run.write_json("evaluation.json", {"kmeans": {"acc": one, "nmi": one}, "linear": {"acc": two}})
    assert cells(render(read_run(run.path), ImageContent()), "evaluation") == [
        *("kmeans", "acc", "0.500", "–", "1", "all, 400 images"),
        *("", "nmi", "0.500", "–", "1", "all, 400 images"),
        *("linear", "acc", "0.500", "0.125", "2", "held-out fifth, 80 images"),
    ]


def test_a_card_names_the_matched_class_if_another_class_is_more_common(
    written: Callable[..., Run],
) -> None:
    first = Cluster(0, 5, "#123456", matched="9", common="4", share=0.6, matched_index=1)
    cards = [Card(cluster, [], []) for cluster in (first, replace(first, common="9"))]
    page = render(read_run(written().path), ImageContent(cards=cards))
    assert [" ".join(text.split()) for text in re.findall(r"<small>(.*?)</small>", page, re.DOTALL)] == [
        "5 images · 60 % are “4” · matched with “9”",
        "5 images · 60 % are “9”",
    ]


@pytest.mark.parametrize(("clusters", "stacked"), [(10, False), (30, True)])
def test_a_table_much_taller_than_the_chart_is_below_it(
    written: Callable[..., Run], clusters: int, stacked: bool
) -> None:
    run = written()
    lines = "".join(f"{number},{number},0.5,{number}\n" for number in range(clusters))
    run.assignments_file.write_text("image,cluster,confidence,label\n" + lines)
    facts = read_run(run.path)
    assert ('class="grid stacked"' in render(facts, clusters_of(facts))) == stacked


def test_without_labels_there_are_sizes_and_no_table_of_classes(written: Callable[..., Run]) -> None:
    run = written()
    run.assignments_file.write_text("image,cluster,confidence,label\na,0,0.5,\nb,1,0.5,\n")
    facts = read_run(run.path)
    page = render(facts, clusters_of(facts))
    assert ('data-chart="sizes"' in page, 'data-chart="confusion"' in page) == (True, False)


def test_a_cluster_of_one_image_has_no_empty_strip(written: Callable[..., Run]) -> None:
    card = Card(
        Cluster(0, 1, "#123456", None, None, None, None), [GalleryImage("data:,", "image 0", False)], []
    )
    page = render(read_run(written().path), ImageContent(cards=[card]))
    assert ("Most typical" in page, "Least typical" in page) == (True, False)


def test_tables_that_are_cut_give_the_full_count(written: Callable[..., Run]) -> None:
    run = written()
    (run.path / "partition.npz").unlink()
    row = {"stage": "second", "round": 2, "loss": 1.0, "seconds": 1.0, "participants": [*range(1200)]}
    run.log(row | {"dropped": [*range(1100)], "bytes_down": 0, "bytes_up": 0})
    page = render(read_run(run.path), ImageContent())
    assert "The first 200 of 1,200 clients" in page
    assert "The last 200 of 1,100." in page
    assert [len(cells(page, "refusals")), len(cells(page, "traffic"))] == [4 * 200, 7 * 200]


def test_knn_has_at_most_all_other_images_as_neighbours_and_no_score_is_minus_zero(
    written: Callable[..., Run],
) -> None:
    run = written()
    scores = {"scores": {"head": {"acc": 0.5, "nmi": 0.5, "ari": -0.0001}}, "knn": 0.5, "images": 4}
    run.write_json("scores.json", scores)
    _, _, ari, knn = score_tiles(read_run(run.path))
    assert (ari.value, knn.meaning) == ("0.000", "leave-one-out accuracy with 3 neighbours")


def test_scores_of_a_sample_state_its_size(written: Callable[..., Run]) -> None:
    run = written()
    half = {"acc": 0.5, "nmi": 0.5, "ari": 0.5}
    scores = {"scores": {"head": half, "pixels": half}, "knn": 0.5, "images": 50_000}
    run.write_json("scores.json", scores | {"sampled": {"knn": 2000, "pixels": 10_000}})
    *_, pixels, knn = score_tiles(read_run(run.path))
    assert pixels.meaning == "ACC without any training; centres from a sample of 10,000"
    assert knn.meaning.endswith("neighbours; on a sample of 2,000")
