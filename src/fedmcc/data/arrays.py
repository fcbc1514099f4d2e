"""Images from a NumPy file: .npz with images and labels, or .npy with images only."""

import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedmcc.data.base import Images, ImageSet, Labels, Source
from fedmcc.errors import InputError, InvalidArrayError

CHANNEL_COUNTS = (1, 3)


@dataclass(frozen=True)
class Arrays(Source):
    """Images in the NumPy file `root`: (n,h,w), (n,h,w,c) or (n,c,h,w), uint8 or floats in 0..1."""

    images: str = "images"  # names of the arrays in an .npz file
    labels: str = "labels"
    groups: str = "groups"  # the owner of each image

    def read(self) -> ImageSet:
        """Read the images, and labels and groups if present; an .npy file of uint8 is memory-mapped."""
        path = self._path()
        arrays = _load(path, self.images, self.labels, self.groups)
        if self.images not in arrays:
            raise InputError(
                f"{path} has no array '{self.images}': set data.images to the name of your array."
            )
        image_set = ImageSet(as_images(arrays[self.images], path), split="all")
        if self.labels in arrays:
            labels, classes = _numbered(arrays[self.labels], len(image_set), f"labels in {path}")
            image_set = replace(image_set, labels=labels, classes=classes)
        if self.groups in arrays:
            groups, owners = _numbered(arrays[self.groups], len(image_set), f"groups in {path}")
            image_set = replace(image_set, groups=groups, owners=owners)
        return image_set

    def _path(self) -> Path:
        if self.root is None:
            raise InputError("The data set 'arrays' needs data.root: set it to an .npz or .npy file.")
        path = self.root.expanduser()
        if not path.exists():
            raise InputError(f"{path} does not exist: set data.root to an .npz or .npy file.")
        if not path.is_file() or path.suffix not in (".npz", ".npy"):
            raise InputError(f"{path} is not an .npz or .npy file: set data.root to one.")
        return path


def _load(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Load the arrays of these names; the array of an .npy file gets the first name."""
    try:
        if path.suffix == ".npy":
            return {names[0]: np.load(path, mmap_mode="r", allow_pickle=False)}
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names if name in arrays.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read: it is damaged, or contains Python objects instead of numbers. "
            "Save it again with numpy.savez or numpy.save."
        ) from error


def as_images(array: np.ndarray, origin: Path | str) -> Images:
    """Convert an array of a common layout and type to images; error messages name it by `origin`."""
    return _to_uint8(_channels_first(array, origin), origin)


def _channels_first(array: np.ndarray, origin: Path | str) -> np.ndarray:
    if array.size and array.ndim == 3:
        return array[:, None]
    if array.size and array.ndim == 4 and array.shape[1] in CHANNEL_COUNTS:
        return array
    if array.size and array.ndim == 4 and array.shape[3] in CHANNEL_COUNTS:
        return array.transpose(0, 3, 1, 2)
    raise InvalidArrayError(
        f"The images in {origin} have shape {array.shape}: "
        "give (n, height, width) or (n, height, width, channels), with 1 or 3 channels."
    )


def _to_uint8(array: np.ndarray, origin: Path | str) -> Images:
    if array.dtype == np.uint8:
        return array
    kind, low, high = array.dtype.kind, 0, 1 if array.dtype.kind == "f" else 255
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if kind not in "iuf":
        raise InvalidArrayError(f"The images in {origin} have type {array.dtype}: save them as uint8.")
    if kind == "f" and len(wrong := np.flatnonzero(~np.isfinite(array).all(axis=(1, 2, 3)))):
        more = f" and {len(wrong) - 1} more images have" if len(wrong) > 1 else " has"
        raise InvalidArrayError(
            f"Image {wrong[0]} in {origin}{more} values that are NaN or infinite: leave out such images."
        )
    if not (array.min() >= low and array.max() <= high):
        raise InvalidArrayError(
            f"The images in {origin} have values outside {low}..{high}: "
            "save them as uint8, or as floats in 0..1."
        )
    return np.rint(array * 255.0 if kind == "f" else array).astype(np.uint8)


def _numbered(array: np.ndarray, count: int, origin: str) -> tuple[Labels, tuple[str, ...]]:
    """Number labels or groups 0, 1, ... in the order of their names; -1 means no label or group."""
    if array.shape not in ((count,), (count, 1)):
        raise InputError(
            f"The {origin} have shape {array.shape}: give one value for each of the {count} images."
        )
    if array.dtype.kind not in "iuUb":
        raise InputError(f"The {origin} have type {array.dtype}: save them as integers or text.")
    flat = array.reshape(count)
    none = flat == -1 if array.dtype.kind == "i" else np.zeros(count, dtype=bool)
    values, inverse = np.unique(flat[~none], return_inverse=True)
    numbers = np.full(count, -1, dtype=np.int64)
    numbers[~none] = inverse
    return numbers, tuple(str(value) for value in values)
