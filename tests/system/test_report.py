"""The report in a browser: light and dark, wide and narrow, with and without images."""

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from typer.testing import CliRunner

from fedmcc.cli import app

Command = Callable[..., Result]
Opened = Callable[..., Page]

ALL_CHARTS_DRAWN = "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))"
TIMEOUT = 240_000  # milliseconds: a busy machine is slow to read 5 MB of script
HOVERS = 24  # times that the mouse is moved to a point until its card appears


@pytest.fixture(scope="session")
def page_file(trained: Path) -> Path:
    result = CliRunner().invoke(app, ["report", str(trained / "seed-2")])
    assert result.exit_code == 0, result.output
    return trained / "seed-2" / "report.html"


@pytest.fixture(scope="session")
def opened(browser: Browser) -> Iterator[Opened]:
    """Opens a page, which must load nothing from the network and log nothing to the console."""
    contexts, noise = [], []

    def open_page(path: Path, width: int = 1280, scheme: str = "light", **options: Any) -> Page:
        shape = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=shape, color_scheme=scheme, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: noise.append(request.url) if request.url[:4] == "http" else None)
        page.goto(path.resolve().as_uri())
        page.wait_for_function(ALL_CHARTS_DRAWN)
        assert noise == []
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert noise == []


@pytest.fixture(scope="session")
def desktop(opened: Opened, page_file: Path) -> Page:
    return opened(page_file)


@pytest.fixture(scope="session")
def phone(opened: Opened, page_file: Path) -> Page:
    return opened(page_file, width=400, has_touch=True, is_mobile=True)


@pytest.fixture(scope="session")
def dark(opened: Opened, page_file: Path) -> Page:
    return opened(page_file, scheme="dark")


def hovered(page: Page) -> Any:
    """The card that appears when the mouse is on a point of the map, which may move while it is laid out."""
    card = page.locator("#card")
    for _ in range(HOVERS):
        page.locator("#image-map").scroll_into_view_if_needed()
        box = page.locator("#image-map .point").nth(20).bounding_box()
        assert box is not None
        page.mouse.move(2, 2)
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        with suppress(PlaywrightTimeoutError):
            card.wait_for(state="visible", timeout=TIMEOUT / HOVERS)
            break
    expect(card).to_be_visible()
    return card


def loaded_pictures(page: Page, where: str) -> int:
    """Number of images, all of which must have pixels."""
    sizes = page.eval_on_selector_all(f"{where} img", "nodes => nodes.map(node => node.naturalWidth)")
    assert all(sizes)
    return len(sizes)


def brightness(page: Page) -> list[float]:
    """Brightness of the background and of a chart's text: 0 is black, 1 white."""
    colours = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
    tick = page.locator("[data-chart=loss] .xtick text").first
    colours.append(tick.evaluate("node => getComputedStyle(node).fill"))
    return [sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in colours]


def test_the_map_shows_the_image_under_the_mouse(desktop: Page) -> None:
    card = hovered(desktop)
    assert {"cluster", "label", "client", "confidence"} <= set(card.inner_text().split("\n"))
    shown = card.locator(".picture").evaluate("node => getComputedStyle(node).backgroundImage")
    assert shown.startswith('url("blob:')
    desktop.mouse.move(2, 2)
    card.wait_for(state="hidden")


def test_a_tap_shows_the_image_too(phone: Page) -> None:
    phone.locator("#image-map").scroll_into_view_if_needed()
    box = phone.locator("#image-map .point").nth(20).bounding_box()
    assert box is not None
    phone.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    phone.locator("#card .picture").wait_for(state="visible")
    phone.locator("#card .hint").tap()
    phone.locator("#similar-images .sprite").first.wait_for(state="visible")
    phone.locator("#similar-close").tap()
    phone.locator("#similar").wait_for(state="hidden")


def test_the_map_is_coloured_by_cluster_label_and_client(desktop: Page, trained: Path) -> None:
    with (trained / "seed-2" / "assignments.csv").open() as file:
        clusters = sorted({int(line["cluster"]) for line in csv.DictReader(file)})
    assert clusters
    for key, numbers in (("client", range(3)), ("label", range(10)), ("cluster", clusters)):
        desktop.get_by_role("button", name=key, exact=True).click()
        legend = desktop.locator("#image-map .legendtext")
        expect(legend).to_have_text([str(number) for number in numbers], timeout=TIMEOUT)


def test_gallery_and_views_show_images(desktop: Page) -> None:
    clusters = desktop.locator("#gallery .cluster").count()
    assert loaded_pictures(desktop, "#gallery") >= 2 * clusters >= 2
    assert loaded_pictures(desktop, "#views") == 5 * 8


def test_a_click_on_an_image_shows_similar_ones_and_so_on(desktop: Page) -> None:
    first = desktop.locator("#gallery img").first
    expected = len((first.get_attribute("data-similar") or "").split())
    first.click()
    similar = desktop.locator("#similar-images .sprite")
    expect(similar).to_have_count(expected, timeout=TIMEOUT)
    title = similar.nth(2).get_attribute("title") or ""
    similar.nth(2).click()
    shown = desktop.locator("#example-facts dd").last
    expect(shown).to_have_text(title.split("image ")[1], timeout=TIMEOUT)
    desktop.locator("#similar-close").click()
    desktop.locator("#similar").wait_for(state="hidden")


def test_every_image_of_a_cluster_can_be_shown(desktop: Page, trained: Path) -> None:
    with (trained / "seed-2" / "assignments.csv").open() as file:
        rows = [(line["cluster"], line["image"]) for line in csv.DictReader(file)]
    place = desktop.locator(".browse .sprites").first
    cluster = place.get_attribute("data-cluster")
    desktop.locator(".browse summary").first.click()
    place.locator(".sprite").first.wait_for(state="attached", timeout=TIMEOUT)  # drawn after the click
    titles = place.locator(".sprite").evaluate_all(
        "nodes => nodes.map(node => node.title.split('image ')[1])"
    )
    assert sorted(titles) == sorted(image for number, image in rows if number == cluster)


def test_outliers_second_choices_and_duplicates_are_shown(desktop: Page) -> None:
    assert loaded_pictures(desktop, "#doubtful") >= 1
    assert "or " in desktop.locator("#doubtful figcaption").first.inner_text()
    assert "image 7" in (desktop.locator("#outliers img").first.get_attribute("title") or "")
    assert desktop.locator("#duplicates .group img").count() == 3


def test_dark_mode_follows_the_system_and_the_button(desktop: Page, dark: Page) -> None:
    background, text = brightness(desktop)
    assert background > 0.9 > 0.6 > text
    assert brightness(dark)[0] < 0.2 < 0.5 < brightness(dark)[1]
    dark.locator("#theme").click()
    dark.wait_for_function("colour('--text') === '#1d2127'")
    assert brightness(dark) == [background, text]
    dark.locator("#theme").click()
    assert brightness(dark)[0] < 0.2


def test_on_paper_the_page_is_light_and_has_no_table_of_contents(dark: Page) -> None:
    dark.emulate_media(media="print")
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert dark.locator(".toc").is_hidden()
    dark.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert brightness(dark)[1] < 0.6
    dark.emulate_media(media="screen")
    dark.evaluate("dispatchEvent(new Event('afterprint'))")
    assert brightness(dark)[0] < 0.2 < 0.5 < brightness(dark)[1]


def test_on_paper_all_details_are_open_and_sections_do_not_touch(dark: Page) -> None:
    dark.emulate_media(media="print")
    dark.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert dark.get_by_text('name = "digits"').is_visible()
    head, first = (dark.locator(where).bounding_box() for where in (".tiles", "#run"))
    assert head is not None
    assert first is not None
    assert first["y"] - head["y"] - head["height"] >= 24
    dark.emulate_media(media="screen")
    dark.evaluate("dispatchEvent(new Event('afterprint'))")
    assert dark.get_by_text('name = "digits"').is_hidden()


def test_a_narrow_page_does_not_scroll_sideways(phone: Page) -> None:
    assert phone.evaluate("document.documentElement.scrollWidth") == 400
    right = "nodes => Math.max(...nodes.map(node => node.getBoundingClientRect().right))"
    assert phone.eval_on_selector_all(".chart, .cluster, .tile, h1", right) <= 400


def test_everything_that_a_run_recorded_is_on_the_page(desktop: Page) -> None:
    charts = desktop.eval_on_selector_all("[data-chart]", "nodes => nodes.map(node => node.dataset.chart)")
    assert {"loss", "scores", "label-free", "features", "sizes", "confusion", "holdings"} <= set(charts)
    assert {"bytes", "seconds", "participants", "epsilon"} <= set(charts)
    assert "Its loss is <b>nan</b>." in desktop.locator("#refusals").inner_text()
    measured = ["linear", "acc", "0.500", "0.125", "2", "all, 120 images"]
    assert desktop.locator("#evaluation td").all_inner_texts() == measured
    assert 'name = "digits"' in (desktop.locator("details pre").text_content() or "")
    assert desktop.locator(".toc a").count() == desktop.locator("main h2").count()


def test_without_images_there_is_no_image_data_at_all(
    opened: Opened, fedmcc: Command, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bare.html"
    assert fedmcc("report", trained / "seed-1", "--no-images", "--out", out).exit_code == 0
    assert "data:image/webp" not in out.read_text()
    page = opened(out)
    assert page.locator("img, #gallery, #views").count() == 0
    assert hovered(page).locator(".picture").count() == 0
    assert "cluster" in page.locator("#card").inner_text()


@pytest.fixture(scope="session")
def comparison(opened: Opened, trained: Path, finished_run: Path) -> Page:
    """The comparison of three runs, of which two differ in their seed only."""
    out = trained / "comparison.html"
    runs = [trained / "seed-1", trained / "seed-2", finished_run]
    result = CliRunner().invoke(app, ["report", *map(str, runs), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("Wrote ")
    return opened(out, width=1200)


def test_several_runs_are_compared(comparison: Page) -> None:
    lines = comparison.locator("#scores tbody tr").all_inner_texts()
    assert ["±" in line for line in lines] == [True, False]
    assert comparison.locator("[data-chart=acc] .scatterlayer .trace").count() == 3  # two lines and a band
    assert comparison.locator("#gallery, #map, img").count() == 0
    assert "partition.name" in comparison.locator("#differences").inner_text()


def test_the_tables_of_a_comparison_fit_or_keep_their_first_column(comparison: Page) -> None:
    hidden, box = "node => node.scrollWidth - node.clientWidth", comparison.locator("#scores .table-box")
    assert box.evaluate(hidden) == 0
    comparison.set_viewport_size({"width": 400, "height": 900})
    assert box.evaluate(hidden) > 100
    box.evaluate("node => node.scrollLeft = 100")
    left = "node => node.getBoundingClientRect().left"
    assert abs(box.locator("td.name").first.evaluate(left) - box.evaluate(left)) <= 1


def test_without_labels_no_section_is_empty(opened: Opened, fedmcc: Command, unlabelled: Path) -> None:
    assert fedmcc("report", unlabelled).exit_code == 0
    page = opened(unlabelled / "report.html")
    assert page.locator("[data-chart=scores], [data-chart=confusion]").count() == 0
    assert "confidence" in page.locator(".tiles").inner_text()
    assert page.locator("[data-mode]").all_inner_texts() == ["cluster"]
    assert all(text.strip() for text in page.locator("main section").all_inner_texts())
    assert loaded_pictures(page, "#gallery") >= 2


def test_missing_images_are_a_warning_on_the_page(
    opened: Opened, fedmcc: Command, unlabelled: Path, pictures: Path
) -> None:
    for folder in (pictures, unlabelled / "cache"):
        shutil.rmtree(folder, ignore_errors=True)
    assert fedmcc("report", unlabelled).exit_code == 0
    page = opened(unlabelled / "report.html")
    assert page.locator(".notice", has_text="Images cannot be shown.").count() == 1
    assert page.locator("[data-chart=sizes]").count() == 1
    assert page.locator("#gallery, #map, img").count() == 0


def test_an_unfinished_run_is_shown_so_far(opened: Opened, fedmcc: Command, unfinished: Path) -> None:
    assert fedmcc("report", unfinished).exit_code == 0
    page = opened(unfinished / "report.html")
    assert "not finished" in page.locator(".notice").inner_text()
    assert loaded_pictures(page, "#gallery") >= 2
    assert page.locator(".tile").count() >= 3
    assert not (unfinished / "cache").exists()
