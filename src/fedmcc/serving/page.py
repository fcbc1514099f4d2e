"""The page of the service and the files that it loads, all of them from this package."""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import jinja2

ASSETS = {  # name: package, media type
    "theme.css": ("fedmcc.report", "text/css"),
    "style.css": ("fedmcc.serving", "text/css"),
    "page.js": ("fedmcc.serving", "text/javascript"),
}


class Asset(NamedTuple):
    """A file that the page loads."""

    text: str
    media_type: str


@cache
def asset(name: str) -> Asset | None:
    """A file of the page; None if there is no such file."""
    if name not in ASSETS:
        return None
    package, media_type = ASSETS[name]
    return Asset((files(package) / "templates" / name).read_text(encoding="utf-8"), media_type)


@cache
def render_page() -> str:
    """The page, which gets all its content from the API."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedmcc.serving"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html").render()
