"""Opens image files: formats of Pillow, and HEIC, DICOM, scientific TIFF and camera raw by an extra each."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image


class Reader(NamedTuple):
    """A format that an optional package reads: its name, the extra of fedmcc, the package, its suffixes."""

    name: str
    extra: str
    package: str
    suffixes: tuple[str, ...]


RAW_SUFFIXES = (".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".pef", ".rw2", ".srw")
HEIC = Reader("HEIC", "heic", "pillow_heif", (".heic", ".heif", ".hif"))
DICOM = Reader("DICOM", "dicom", "pydicom", (".dcm", ".dicom"))
TIFF = Reader("TIFF", "tiff", "tifffile", (".tif", ".tiff"))
RAW = Reader("camera raw", "raw", "rawpy", RAW_SUFFIXES)
READERS = (HEIC, DICOM, TIFF, RAW)
DICOM_MARK = (128, b"DICM")  # offset and bytes
UNREADABLE = {  # suffixes of formats that no extra reads, with the remedy
    "a video, extract its frames": (".mp4", ".mov", ".avi", ".mkv", ".webm"),
    "a drawing, convert it to PNG": (".svg", ".pdf", ".eps", ".ai"),
}


class MissingReaderError(Exception):
    """The extra that reads the format of a file is not installed."""


def open_image(path: Path, max_pixels: int) -> "Image":
    """Open an image file; pixels of formats that Pillow reads itself are not decoded yet."""
    from PIL import Image, UnidentifiedImageError

    if is_dicom(path):
        _require(DICOM)
        from fedmcc.data.dicom import read_dicom

        return read_dicom(path, max_pixels)
    if is_raw(path):  # Pillow would read the small preview of some of them
        _require(RAW)
        from fedmcc.data.camera_raw import read_raw

        return read_raw(path, max_pixels)
    if path.suffix.lower() in HEIC.suffixes and _installed(HEIC):
        import pillow_heif

        pillow_heif.register_heif_opener()
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        if path.suffix.lower() not in TIFF.suffixes or not _installed(TIFF):
            raise
        from fedmcc.data.scientific_tiff import read_tiff

        return read_tiff(path, max_pixels)


def sides_of(path: Path) -> tuple[int, int]:
    """Width and height of an image file, without decoding it."""
    from PIL import Image

    if is_raw(path):
        _require(RAW)
        from fedmcc.data.camera_raw import raw_sides

        return raw_sides(path)
    with Image.open(path) as image:
        return image.size


def is_raw(path: Path) -> bool:
    """Whether a file is named as camera raw."""
    return path.suffix.lower() in RAW.suffixes


def is_dicom(path: Path) -> bool:
    """Whether a file is named as DICOM or has no suffix, and has the mark of DICOM."""
    if path.suffix.lower() not in (*DICOM.suffixes, ""):
        return False
    offset, mark = DICOM_MARK
    with path.open("rb") as file:
        return file.read(offset + len(mark))[offset:] == mark


def remedy(path: Path) -> str | None:
    """What would make a file readable that Pillow does not read, judged by its suffix; None: unknown."""
    suffix = path.suffix.lower()
    for reader in READERS:
        if suffix in reader.suffixes and not _installed(reader):
            return _hint(reader)
    return next((text for text, suffixes in UNREADABLE.items() if suffix in suffixes), None)


def readers_of(names: Iterable[str]) -> tuple[str, ...]:
    """The installed packages that some of these files need; decoded files depend on them."""
    suffixes = {Path(name).suffix.lower() for name in names}
    return tuple(
        reader.package for reader in READERS if suffixes.intersection(reader.suffixes) and _installed(reader)
    )


def named_as_image(name: str) -> bool:
    """Whether the suffix of a file is that of an image format."""
    from PIL import Image

    suffix = Path(name).suffix.lower()
    return suffix in Image.registered_extensions() or any(suffix in reader.suffixes for reader in READERS)


def _require(reader: Reader) -> None:
    if not _installed(reader):
        raise MissingReaderError(_hint(reader))


def _hint(reader: Reader) -> str:
    return f"{reader.name}, install fedmcc[{reader.extra}] to read it"


def _installed(reader: Reader) -> bool:
    return find_spec(reader.package) is not None
