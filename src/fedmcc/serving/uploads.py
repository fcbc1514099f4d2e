"""Image files that clients send: recognised by their first bytes, read within limits, decoded."""

import asyncio
import tempfile
from pathlib import Path

from starlette.requests import Request

from fedmcc.data.decode import DecodedImage, HeightWidth, decode, reason
from fedmcc.serving.limits import MEGABYTE, Limits

HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
AVIF_BRANDS = (b"avif", b"avis")
STARTS = {  # the first bytes of a file: the suffix of its format
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG\r\n\x1a\n": ".png",
    b"GIF87a": ".gif",
    b"GIF89a": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"II+\0": ".tif",
    b"MM\0+": ".tif",
}
FORMATS = "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC or DICOM"


class RefusedError(Exception):
    """A request that is answered with this status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


async def read_upload(request: Request, limits: Limits) -> bytes:
    """The body of a request, in a limited size and time."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.max_bytes:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        raise RefusedError(408, "The file did not arrive in time: send it again.") from None
    return bytes(body)


def decode_upload(content: bytes, target: tuple[HeightWidth, int], limits: Limits) -> DecodedImage:
    """Decode an image file as the run decoded its own; raise RefusedError if that is not possible.

    The file gets a name of the service's own: nothing that a client sends becomes part of a path.
    """
    suffix = suffix_of(content)
    if suffix is None:
        raise RefusedError(415, f"The file is not an image in a supported format: send {FORMATS}.")
    with tempfile.TemporaryDirectory(prefix="fedmcc-upload-") as folder:
        path = Path(folder) / f"image{suffix}"
        path.write_bytes(content)
        try:
            return decode(path, *target, limits.max_pixels)
        except Exception as error:  # a decoder may raise any exception on a damaged file
            why = reason(error, path).replace(str(path), "the file").rstrip(".")
            raise RefusedError(422, f"The image cannot be read: {why}. Send another file.") from None


def suffix_of(content: bytes) -> str | None:
    """The suffix of the format of a file, by its first bytes; None: not supported."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    if content[4:8] == b"ftyp":
        brand = content[8:12]
        return ".heic" if brand in HEIF_BRANDS else ".avif" if brand in AVIF_BRANDS else None
    if content[128:132] == b"DICM":
        return ".dcm"
    return next((suffix for start, suffix in STARTS.items() if content.startswith(start)), None)


def _too_large(limits: Limits) -> RefusedError:
    return RefusedError(413, f"The file is too large: send at most {limits.max_bytes / MEGABYTE:g} MB.")
