"""Hooks of MkDocs: the site mirrors the repository, so that one relative link works in both.

The site has every page of the repository, and every file that a page links to, at its own path.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("*.md", "docs/**/*.md", "results/*.md", "docs/site.css")
LINK = re.compile(r"\]\(([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository that the site has."""
    root = Path(config.config_file_path).parent
    from_theme = [file for file in files if file.src_dir != config.docs_dir]
    mirrored = [
        File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path))
        for path in sorted(_published(root))
    ]
    return Files([*from_theme, *mirrored])


def _published(root: Path) -> set[Path]:
    pages = {path for pattern in PAGES for path in root.glob(pattern)}
    linked = {
        (page.parent / link).resolve()
        for page in pages
        for link in LINK.findall(page.read_text())
        if "://" not in link
    }
    files = {path for path in linked if path.is_file() and path.is_relative_to(root)}
    return pages | files
