"""The scripts that write what is pinned here also compute what it is compared with."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def regenerate() -> ModuleType:
    return _script("regenerate")


@pytest.fixture(scope="session")
def wire() -> ModuleType:
    return _script("wire")


@pytest.fixture(scope="session")
def near() -> Callable[[Any], Any]:
    return _near


def _near(content: Any) -> Any:
    """What equals the content of a JSON file, floating-point numbers to a relative 1e-5."""
    if isinstance(content, dict):
        return {key: _near(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_near(value) for value in content]
    return pytest.approx(content, rel=1e-5) if isinstance(content, float) else content


def _script(name: str) -> ModuleType:
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
