"""Every test has one thread, a fixed global seed, a cache folder of its own, and no network but 127.0.0.1."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from fedmcc.runs.directory import Run

torch.set_num_threads(1)
# Examples are the same in every run, and a busy machine may take its time over them.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


# Files that take minutes start first, those that mostly wait beside those that compute.
FIRST = ("flower", "kill", "deployment", "reproduce", "hostile_site", "pool", "proxy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bare` tests as on a machine with Python and nothing else."""
    parser.addoption("--bare", action="store_true", help="hide the programs that some tests need")


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores: tests of federations mostly wait."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a program, and start with files that take longest, so that nothing waits for them."""
    for item in items:
        if _programs().FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.needs_program)
    items.sort(key=_turn)  # stable: other tests keep their order


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Hide all programs from a test that asks for none, and from its fixtures."""
    visible = item.get_closest_marker("needs_program") and not item.config.getoption("--bare")
    with nullcontext() if visible else _programs().hidden():
        return (yield)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Weights that a test draws without a generator of its own are the same in every run.

    `torch.manual_seed` would also record the stack for a GPU that is not in use, which takes 3 ms.
    """
    torch.default_generator.manual_seed(0)


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
def programs() -> ModuleType:
    """The module that knows which programs tests need."""
    return _programs()


@pytest.fixture(scope="session")
def chromium(programs: ModuleType) -> str:
    """The browser."""
    return programs.installed("chromium")


@pytest.fixture(scope="session")
def nginx(programs: ModuleType) -> str:
    """The program in front of a server."""
    return programs.installed("nginx")


@pytest.fixture(scope="session")
def systemd_analyze(programs: ModuleType) -> str:
    """The program that checks units of systemd."""
    return programs.installed("systemd-analyze")


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


def _turn(item: pytest.Item) -> int:
    name = item.path.stem.removeprefix("test_")
    return FIRST.index(name) if name in FIRST else len(FIRST) + ("system" not in item.path.parts)


def _programs() -> ModuleType:
    return _load("programs", Path(__file__).with_name("programs.py"))


@lru_cache
def _load(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
