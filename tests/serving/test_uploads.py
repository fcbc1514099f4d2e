"""Uploads: hostile files are refused in one sentence, many at once are answered in bounded memory."""

import asyncio
import io
import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from fedmcc.serving.uploads import suffix_of

pytestmark = pytest.mark.slow  # takes seconds

Asked = Callable[..., httpx.Response]
Clients = Callable[..., httpx.AsyncClient]
MAX_BYTES = 2_000_000  # of the service in the tests


def saved(format: str) -> bytes:
    """A small image file."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((9, 9, 3), 90, np.uint8)).save(buffer, format=format)
    return buffer.getvalue()


def claims(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims to have this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b""))
    parts = [struct.pack(">I", len(data)) + kind + data for kind, data in chunks]
    sums = [struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(part + crc for part, crc in zip(parts, sums, strict=True))


GOOD = saved("PNG")
HOSTILE = {
    "empty": (b"", 415),
    "text": (b"../../etc/passwd", 415),
    "page": (b"<html><script>alert(1)</script></html>", 415),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415),
    "archive": (b"PK\x03\x04" + bytes(100), 415),
    "truncated": (GOOD[: len(GOOD) // 2], 422),
    "start only": (b"\xff\xd8\xff", 422),
    "noise after a start": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 50, 422),
    "tiff without content": (b"II*\0" + b"\xff" * 40, 422),
    "dicom without content": (bytes(128) + b"DICM" + b"\xff" * 40, 422),
    "bomb": (claims(60_000, 60_000), 422),
    "just too many pixels": (claims(1001, 1000), 422),
    "too large": (b"\x89PNG\r\n\x1a\n" + bytes(MAX_BYTES), 413),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence_without_a_path(ask: Asked, kind: str) -> None:
    content, status = HOSTILE[kind]
    answer = ask("POST", "/api/predict", content=content)
    sentence = answer.json()["detail"]
    assert answer.status_code == status, sentence
    assert sentence.endswith(".")
    assert "/tmp" not in sentence
    assert "Traceback" not in sentence


def mixture(folder: Path, names: list[str]) -> list[tuple[str, bytes]]:
    """200 files; those without a name are hostile, and 60 of them have 1.9 MB."""
    large = b"\x89PNG\r\n\x1a\n" + np.random.default_rng(0).bytes(1_900_000)
    good = [(name, (folder / name).read_bytes()) for name in names]
    hostile = [("", content) for content, _ in HOSTILE.values()] + [("", large)] * 12
    return (good * 4 + hostile * 5)[:200]


def memory(kind: str) -> int:
    """Memory of this process in kB: VmRSS is in use now, VmHWM is the peak since `clear_refs`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{kind}:")[1].split()[0])


def test_200_concurrent_uploads_of_good_and_hostile_files(
    client: Clients,
    complete: Callable[..., Any],
    predicted: dict[str, dict[str, str]],
    image_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = mixture(image_folder, list(predicted)[:20])

    async def send(files: list[tuple[str, bytes]]) -> list[httpx.Response]:
        async with client() as connected:
            return await asyncio.gather(*(connected.post("/api/predict", content=body) for _, body in files))

    complete(send(sent[:5] + sent[-5:]))  # buffers of libraries are allocated once
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    with caplog.at_level(logging.DEBUG):
        answers = complete(send(sent))
    assert memory("VmHWM") - before < 60_000  # all large files at once would be 114 MB
    assert (len(answers), "PNG" in caplog.text) == (200, False)
    for (name, _), answer in zip(sent, answers, strict=True):
        assert answer.status_code == 200 if name else 400 <= answer.status_code < 500
        assert not name or answer.json()["cluster"] == int(predicted[name]["cluster"])


def test_a_body_that_does_not_arrive_is_given_up(client: Clients, complete: Callable[..., Any]) -> None:
    async def slow() -> httpx.Response:
        async def body():
            yield b"\x89PNG"
            await asyncio.sleep(30)

        async with client() as connected:
            return await connected.post("/api/predict", content=body())

    assert complete(slow()).status_code == 408


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF"])
def test_supported_formats_are_recognised_by_their_first_bytes(ask: Asked, format: str) -> None:
    assert ask("POST", "/api/predict", content=saved(format)).status_code == 200


def test_a_file_is_recognised_by_content_and_not_by_what_it_contains_later() -> None:
    assert suffix_of(b"%PDF" + saved("PNG")) is None
    assert suffix_of(b"\0\0\0\x18ftypheic" + bytes(8)) == ".heic"
    assert suffix_of(b"\0\0\0\x18ftypisom" + bytes(8)) is None  # a video
