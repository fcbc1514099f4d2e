"""Every test has one thread, a fixed global seed, a cache folder of its own, and no network but 127.0.0.1."""

import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import torch
from hypothesis import settings

from fedmcc.deployment.setup.nginx import find_nginx

if TYPE_CHECKING:
    from fedmcc.runs.directory import Run

torch.set_num_threads(1)
# Examples are the same in every run, and a busy machine may take its time over them.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with files that take minutes, so that no process waits for them at the end."""
    items.sort(key=lambda item: "system" not in item.path.parts)  # stable: other tests keep their order


@pytest.fixture(autouse=True)
def seed() -> None:
    """Weights that a test draws without a generator of its own are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where downloads and decoded images go; processes that a test starts inherit it all.

    What stores something creates it: `tmp_path` costs 2 ms, and more the more tests there are.
    """
    folder = tmp_path_factory.getbasetemp() / "caches" / uuid4().hex
    monkeypatch.setenv("FEDMCC_DATA", str(folder))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture(scope="session")
def required() -> Callable[[str | None, str], str]:
    """Returns the path of a program, if it is installed; if not, the test is skipped, or fails in CI."""

    def found(program: str | None, remedy: str) -> str:
        if program is None:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(remedy)
        return program

    return found


@pytest.fixture(scope="session")
def nginx(required: Callable[[str | None, str], str]) -> str:
    """The program in front of a server."""
    return required(find_nginx(), "nginx is not installed: apt-get install nginx")


@pytest.fixture(scope="session")
def fleet() -> ModuleType:
    """The module with sites that speak Flower's fleet interface themselves."""
    return _load("fleet", Path(__file__).parent / "system" / "fleet.py")


@pytest.fixture(scope="session")
def encoder_files() -> ModuleType:
    """The module that writes tiny pretrained encoders."""
    return _load("encoder_files", Path(__file__).parent / "encoder_files.py")


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 image files."""
    from PIL import Image

    from fedmcc.data.synthetic import Synthetic

    root = tmp_path_factory.mktemp("images")
    for number, image in enumerate(Synthetic(samples=24, size=16).load().images):
        Image.fromarray(image.transpose(1, 2, 0)).save(root / f"{number:02}.png")
    return root


@pytest.fixture(scope="session")
def folder_run(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> "Run":
    """A finished run of the image files; a test that changes it takes a copy."""
    from fedmcc.config import parse
    from fedmcc.runs.experiment import run

    table = {
        "clusters": 4,
        "device": "cpu",
        "threads": 1,
        "data": {"name": "folder", "root": str(image_folder), "size": 16},
        "encoder": {"width": 4},
        "training": {"batch_size": 8},
        "method": {"rounds": 1},
    }
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMCC_DATA", str(folder / "cache"))
        return run(parse(table), folder / "run")


def _load(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
