"""Draws the pictures of the documentation anew: runs the demo, and photographs its pages in Chromium.

python docs/pictures.py [RUN]    # RUN: a demo that is complete, instead of a new one
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Page, sync_playwright

DOCS = Path(__file__).resolve().parent
FEDMCC = (sys.executable, "-m", "fedmcc")
DRAWN = "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.main-svg'))"
TIMEOUT = 240_000  # milliseconds: a busy machine is slow to read 5 MB of script
HOVERS = 24  # times that the mouse is moved to a point until its card appears


def main() -> None:
    """Write all pictures beside this file."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("Chromium is not on PATH: install it, with `apt-get install chromium` on Debian.")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        here = Path(folder)
        run = Path(sys.argv[1]).resolve() if sys.argv[1:] else here / "digits"
        if not run.exists():
            subprocess.run((*FEDMCC, "demo", "--out", run), check=True)
        views = ("--out", DOCS / "views-digits.png", "--force", "--set", "views.size=28")
        subprocess.run((*FEDMCC, "views", "digits", *views), check=True)
        subprocess.run((sys.executable, DOCS.parent / "examples" / "digit_folders.py", here), check=True)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        photograph_report(browser, run)
        photograph_service(browser, run, [here / name for name in ("b/0010.png", "a/0003.png", "c/0020.png")])
        browser.close()


def photograph_report(browser: Browser, run: Path) -> None:
    """The head with the map, the first cluster with all its images, and similar ones of the first image."""
    subprocess.run((*FEDMCC, "report", run), check=True)
    page = opened(browser, (run / "report.html").as_uri(), 1280, 1590)
    page.wait_for_function(DRAWN)
    hover(page)
    page.screenshot(path=DOCS / "report.png")
    cluster = page.locator("#gallery .cluster").first
    cluster.locator(".browse summary").click()
    cluster.locator(".sprite").first.wait_for(state="attached")
    cluster.screenshot(path=DOCS / "tutorial-gallery.png")
    cluster.locator("img").first.click()
    page.locator("#similar-images .sprite").first.wait_for()
    page.locator("#similar").screenshot(path=DOCS / "tutorial-similar.png")


def photograph_service(browser: Browser, run: Path, images: list[Path]) -> None:
    """The page of the service with three dropped images."""
    command = (*FEDMCC, "serve", run, "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        address = next(word for word in service.stdout.readline().split() if word.startswith("http://"))
        page = opened(browser, address, 1200, 860)
        page.locator(".cluster img").nth(8).wait_for()
        page.set_input_files("#files", images)
        page.locator(".result .facts").nth(len(images) - 1).wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=DOCS / "tutorial-serve.png")
        service.terminate()


def opened(browser: Browser, address: str, width: int, height: int) -> Page:
    """A page in light colours."""
    shape = {"width": width, "height": height}
    page = browser.new_page(viewport=shape, color_scheme="light")
    page.set_default_timeout(TIMEOUT)
    page.goto(address)
    return page


def hover(page: Page) -> None:
    """Move the mouse to a point of the map, which may move while it is laid out, until its card appears."""
    for _ in range(HOVERS):
        box = page.locator("#image-map .point").nth(20).bounding_box()
        assert box is not None
        page.mouse.move(2, 2)
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(500)
        if page.locator("#card").is_visible():
            return
    sys.exit("No card appears over a point of the map.")


if __name__ == "__main__":
    main()
