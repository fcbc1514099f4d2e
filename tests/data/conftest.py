"""A random generator, image files of noise, and a server with a file to download."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CONTENT = b"the official file" * 1000


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def picture(generator: np.random.Generator) -> Callable[..., Path]:
    """Write an image of noise of any mode and size."""

    def write(path: Path, mode: str = "RGB", size: tuple[int, int] = (12, 12)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(path)
        return path

    return write


class Handler(BaseHTTPRequestHandler):
    """/right/ serves the file, /wrong/ another file, and /broken/ half of the file."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        self.server.requested.append(kind)  # type: ignore[attr-defined]
        if kind not in ("right", "wrong", "broken"):
            return self.send_error(404)
        content = CONTENT if kind != "wrong" else CONTENT[::-1]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if kind != "broken" else content[: len(content) // 2])
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.requested = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()
