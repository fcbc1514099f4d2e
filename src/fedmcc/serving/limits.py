"""What the service accepts, so that no client can exhaust memory or time."""

from dataclasses import dataclass

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Limits of requests; memory is bounded by `uploads * max_bytes` and `decoders` decoded images."""

    max_bytes: int = 20 * MEGABYTE  # of an image file
    max_pixels: int = 25_000_000  # of an image
    max_files: int = 200  # that the page takes at a time
    uploads: int = 8  # image files in memory at a time; others wait before they are read
    decoders: int = 2  # images decoded at a time
    upload_seconds: float = 30.0  # for the body of a request
    connections: int = 512  # further ones get a 503
    max_members: int = 96  # images of a cluster in one answer
