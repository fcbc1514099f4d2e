"""The documentation builds as a website without warnings, and its pages load nothing from other servers."""

import re
import subprocess
import sys
from pathlib import Path

import fedmcc

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:link|script|img)\b[^>]*?(?:href|src)=\"?(https?:)")


def test_the_site_builds_has_every_public_name_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert not [path for path, text in pages.items() if LOADED.search(text)]
    reference = "".join(text for path, text in pages.items() if path.parent.name == "reference")
    names = {*fedmcc.__all__, *(f"losses.{name}" for name in fedmcc.losses.__all__)} - {"losses"}
    assert not [name for name in names if f'id="fedmcc.{name}"' not in reference]
