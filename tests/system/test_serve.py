"""The page of `fedmcc serve` in a browser, at desktop and phone width, against the real process."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

Started = Callable[..., "subprocess.Popen[str]"]
PHONE = {
    "viewport": {"width": 400, "height": 900},
    "is_mobile": True,
    "has_touch": True,
    "color_scheme": "dark",
}
TIMEOUT = 240_000  # milliseconds: a busy machine is slow


@pytest.fixture
def address(started: Started, run: Path) -> str:
    """The address that the process prints, with the token."""
    process = started("serve", run, "--port", 0)
    line = process.stdout.readline()
    assert line.startswith("Open http://127.0.0.1:"), process.stderr.read() if process.poll() else line
    return line.split()[1]


def opened(browser: Browser, address: str, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(TIMEOUT)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.locator(".cluster").nth(8).wait_for()
    assert errors == []
    return page


def test_images_are_dropped_clusters_renamed_and_merged(
    browser: Browser, address: str, run: Path, pictures: Path, truncated: Path
) -> None:
    page = opened(browser, address, viewport={"width": 1200, "height": 900})
    assert "token" not in page.url
    drop(page, [pictures / "00.png", pictures / "01.png", truncated])
    page.locator(".cluster").nth(3).click()
    page.locator("#members figure, #no-members:visible").first.wait_for()
    page.fill("#name", "<b>threes</b>")
    page.get_by_role("button", name="Save name").click()
    expect(page.locator("#detail-title")).to_have_text("<b>threes</b>", timeout=TIMEOUT)
    page.select_option("#other", "5")
    page.get_by_role("button", name="Merge into this one").click()
    expect(page.locator(".cluster")).to_have_count(9, timeout=TIMEOUT)
    stored = {"names": {"3": "<b>threes</b>"}, "merged": {"5": 3}}
    assert json.loads((run / "clusters.json").read_text()) == stored
    look_on_a_phone(opened(browser, address.split("#")[0], **PHONE))


def drop(page: Page, files: list[Path]) -> None:
    """Two images get a cluster, the third is damaged."""
    page.set_input_files("#files", files)
    expect(page.locator(".result")).to_have_count(3, timeout=TIMEOUT)
    refused = page.locator(".result.refused p").all_inner_texts()
    assert (refused[0], refused[1][:25]) == ("half.png", "The image cannot be read:")
    assert "confidence" in page.locator(".result .facts").first.inner_text()


def look_on_a_phone(page: Page) -> None:
    """Nothing is cut off, the page is dark, and without the token nothing can be changed."""
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 150
    page.fill("#search", "threes")
    expect(page.locator(".cluster:visible")).to_have_count(1, timeout=TIMEOUT)
    page.locator(".cluster:visible").tap()
    page.get_by_role("button", name="Save name").tap()
    expect(page.locator("#unlock")).to_be_visible(timeout=TIMEOUT)
    box = page.locator("#detail").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    page.context.close()
