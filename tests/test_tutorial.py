"""The tutorial: its commands and its code run as written, and its pictures are small."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(ROOT / "tests" / "tutorial.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_its_pictures_are_small() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", TUTORIAL)
    assert len(pictures) >= 3
    assert all((ROOT / "docs" / name).stat().st_size < 300_000 for name in pictures)
