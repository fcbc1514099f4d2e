"""A service of a tiny run, asked inside this process."""

import asyncio
import csv
import io
import shutil
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedmcc.runs import clusters
from fedmcc.runs.directory import Run
from fedmcc.runs.predict import predict
from fedmcc.serving.app import create_app
from fedmcc.serving.limits import Limits
from fedmcc.serving.security import Access
from fedmcc.serving.service import Service

TOKEN = "a token of the tests"
LIMITS = Limits(max_bytes=2_000_000, max_pixels=1_000_000, upload_seconds=0.5)
Clients = Callable[..., httpx.AsyncClient]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, folder_run: Run) -> Run:
    """The run with a complete table of its images."""
    run = Run(Path(shutil.copytree(folder_run.path, tmp_path_factory.mktemp("served") / "run")))
    clusters.rewrite_table(run)
    return run


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy of a finished run, which a test may change."""
    return Run(Path(shutil.copytree(finished.path, tmp_path / "run")))


@pytest.fixture
def service(run: Run) -> Iterator[Service]:
    service = Service(run, LIMITS)
    yield service
    service.close()


@pytest.fixture
def client(service: Service) -> Clients:
    """Makes a client of the application, as from this machine or from another one."""

    def connect(loopback: bool = True) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=create_app(service, Access(loopback, TOKEN)))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")

    return connect


@pytest.fixture
def complete() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Returns the result of a coroutine; in a thread, since a browser test may leave a loop in this one."""

    def wait(request: Coroutine[Any, Any, Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, request).result()

    return wait


@pytest.fixture
def ask(client: Clients, complete: Callable[..., Any]) -> Callable[..., httpx.Response]:
    """Sends one request and returns the answer."""

    def send(method: str, path: str, loopback: bool = True, **options: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            async with client(loopback) as connected:
                return await connected.request(method, path, **options)

        return complete(request())

    return send


@pytest.fixture
def token() -> dict[str, str]:
    """The header of a request that makes a change."""
    return {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def predicted(run: Run, image_folder: Path) -> dict[str, dict[str, str]]:
    """What `fedmcc predict` gives for the files of the folder, by name."""
    return {row["image"]: row for row in csv.DictReader(io.StringIO(predict(run, image_folder).csv))}


@pytest.fixture
def good(image_folder: Path) -> bytes:
    """An image file."""
    return (image_folder / "00.png").read_bytes()
