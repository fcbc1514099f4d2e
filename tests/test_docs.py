"""What the documentation mentions exists: links, files, tests, names of the code and options."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_type_hints

from fedmcc import config
from fedmcc.methods.base import Method, Stage

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "fedmcc"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"runs"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.-]+(/[\w.-]+)*\.py|\w+(/[\w.-]+)+/?")
NAME = re.compile(r"(?:fedmcc\.)?([a-z_]+)(\.\w+)+")
TEST = re.compile(r"(…|[\w/]+\.py)::(\w+)")
RECORD = re.compile(r".*\.(csv|html|json|jsonl|npz|py|toml)")  # files, most of a run directory


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    for page, link in _in_pages(lambda page: LINK.findall(page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), (page, link)
        assert not anchor or anchor in _anchors(target), (page, link)


def test_every_file_that_is_mentioned_exists() -> None:
    for page, path in _in_pages(lambda page: filter(FILE.fullmatch, _code(page))):
        if path.endswith(".py") or path.split("/")[0] in FOLDERS:
            real = Path(path).parent if "NAME" in path else Path(path)  # methods/NAME.py is yours to write
            assert (ROOT / real).exists() or (PACKAGE / real).exists(), (page, path)


def test_every_test_that_is_mentioned_exists() -> None:
    file = ""
    for page, (where, name) in _in_pages(lambda page: TEST.findall(page.read_text())):
        file = file if where == "…" else where  # the ellipsis is the file before
        assert f"def {name}(" in (ROOT / file).read_text(), (page, f"{file}::{name}")


def test_every_dotted_name_is_one_of_the_code_or_an_option() -> None:
    packages = {path.stem for path in PACKAGE.iterdir()}
    for page, name in _in_pages(_code):
        match = NAME.fullmatch(name.partition("(")[0])
        if match and match[1] in packages and not RECORD.fullmatch(name):
            assert _is_option(match[0]) or _is_python(match[0]), (page, name)


def test_every_make_target_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        found = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), flags=re.MULTILINE))
        assert found <= targets, page


def test_the_changelog_and_the_citation_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    releases = re.findall(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert releases[0][0] == version
    assert f'version: {version}\ndate-released: "{releases[0][1]}"\n' in citation


def test_pages_install_from_a_checkout_or_a_wheel_with_extras_that_exist() -> None:
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        for wanted in re.findall(r"pip install '(.+?)'", page.read_text()):
            extras = re.fullmatch(r"(?:\.|fedmcc-[0-9.]+-py3-none-any\.whl)\[(.+)\]", wanted)
            assert extras is not None, f"{page.name}: {wanted}"
            assert set(extras[1].split(",")) <= known, f"{page.name}: {wanted}"


def test_the_method_protocol_has_the_members_that_the_architecture_lists() -> None:
    section = (
        (ROOT / "docs" / "architecture.md").read_text().split("## The method protocol")[1].split("\n## ")[0]
    )
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name.partition("(")[0] for cell in cells for name in CODE.findall(cell)}
    known = set(dir(Method)) | set(dir(Stage)) | {field.name for field in fields(Stage)}
    assert len(listed) > 10
    assert listed <= known


def _in_pages(find: Callable[[Path], Iterable[Any]]) -> list[tuple[Path, Any]]:
    """What is found in each page, with the page."""
    return [(page, found) for page in PAGES for found in find(page)]


def _code(page: Path) -> Iterator[str]:
    """What stands between backticks, code blocks aside."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return (match[1] for match in CODE.finditer(text))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_python(name: str) -> bool:
    try:
        resolve_name(f"fedmcc.{name.removeprefix('fedmcc.')}")
    except (ImportError, AttributeError):
        return False
    return True


def _is_option(name: str) -> bool:
    section, _, key = name.partition(".")
    if section in config.CHOICES:
        kinds = list(config.CHOICES[section][0].values())
    else:
        kinds = [get_type_hints(config.Config).get(section, config.General)]
    return key == "name" or any(key == field.name for kind in kinds for field in fields(kind))
