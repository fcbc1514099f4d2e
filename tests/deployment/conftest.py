"""A federation of two sites in a folder, as its operator would found it."""

from pathlib import Path

import pytest

from fedmcc.deployment.folders import Operator, Terms
from fedmcc.deployment.founding import found

TERMS = Terms("127.0.0.1", 8000, 8001, ("north", "south"))


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return found(tmp_path / "federation", TERMS, 365)
