"""Images as Python programs hold them: arrays, Pillow images, paths, data sets of PyTorch or Hugging Face."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmcc.data.arrays import as_images
from fedmcc.data.base import Images, ImageSet
from fedmcc.data.decode import HeightWidth, decode, decode_image, is_grey, is_grey_image, reason
from fedmcc.data.folder import Folder
from fedmcc.errors import InputError, InvalidArrayError

BYTE_RANGE = 255.0  # the largest value of floats that are not in 0..1
IMAGE_KEYS = ("image", "img", "pixel_values")  # of an item of a data set that is a dictionary


def gathered(given: Any) -> Any:
    """The images of a data set or of a column as a list or an array; anything else as it is.

    A data set has a length and numbered items: images, tuples that start with one, or dictionaries.
    """
    if isinstance(given, str | Path):
        return given
    if hasattr(given, "__array__"):  # an array, a tensor, or a column of a table
        array = np.asarray(given)
        return list(array) if array.dtype.kind in "OU" else array
    if not isinstance(given, list | tuple):
        if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
            raise InputError(f"X is a {type(given).__name__}: give an array, a list of images, or paths.")
        given = [_image_of(given[row]) for row in range(len(given))]
    arrays = given and hasattr(given[0], "__array__") and not hasattr(given[0], "getbands")
    return _stacked([np.asarray(image) for image in given]) if arrays else given


def _stacked(images: Sequence[np.ndarray]) -> np.ndarray:
    for number, image in enumerate(images):
        if image.shape != images[0].shape:
            raise InvalidArrayError(
                f"Image {number} of X has the shape {image.shape} and image 0 {images[0].shape}: give arrays "
                "of one shape, or Pillow images or paths, which are scaled."
            )
    return np.stack(images)


def _image_of(item: Any) -> Any:
    if isinstance(item, tuple | list):
        return item[0]
    if not isinstance(item, Mapping):
        return item
    key = next((key for key in IMAGE_KEYS if key in item), None)
    if key is None:
        raise InputError(
            f"The items of X have no key 'image': give the column of images ({', '.join(item)})."
        )
    return item[key]


def to_images(given: Any, shape: HeightWidth, channels: int | None, scale: float | None = None) -> Images:
    """Images of any kind as bytes; files and Pillow images get this shape.

    `channels` None: 1 if all files or Pillow images are grey. `scale` is the largest possible value of
    floats, 1 or 255; None: 255 if there is a value above 1.
    """
    if isinstance(given, str | Path):
        given = _paths_in(Path(given))
    first = given[0] if isinstance(given, Sequence) and len(given) else None
    if isinstance(first, str | Path):
        return _from_files([Path(path) for path in given], shape, channels)
    if first is not None and hasattr(first, "getbands"):  # a Pillow image, recognised without importing it
        count = channels or (1 if all(map(is_grey_image, given)) else 3)
        return np.stack([decode_image(image, shape, count) for image in given])
    try:
        array = np.asarray(given)
    except ValueError:
        raise InvalidArrayError("The lists of X have different lengths: give images of one shape.") from None
    if array.dtype.kind == "f" and array.size and scale_of(array, scale) == BYTE_RANGE:
        array = array / BYTE_RANGE
    return as_images(array, "X")


def float_scale(given: Any) -> float | None:
    """The largest possible value of an array of floats; None for images of other kinds."""
    if not isinstance(given, np.ndarray) or given.dtype.kind != "f" or not given.size:
        return None
    return scale_of(given)


def with_owners(images: ImageSet, groups: np.ndarray) -> ImageSet:
    """Images with the owner of each."""
    if groups.shape != (len(images),):
        raise InputError(
            f"groups has the shape {groups.shape}: give one owner for each of {len(images)} images."
        )
    owners, numbers = np.unique(groups, return_inverse=True)
    return replace(images, groups=numbers.astype(np.int64), owners=tuple(map(str, owners)))


def scale_of(array: np.ndarray, scale: float | None = None) -> float:
    """The largest possible value of floats: as given, or 255 if one of them is above 1, else 1."""
    return scale or (BYTE_RANGE if 1 < array.max() <= BYTE_RANGE else 1.0)


def _paths_in(path: Path) -> list[Path]:
    """The image files below a folder, or the file itself."""
    if path.is_file():
        return [path]
    listing = Folder(root=path, labels=False).listing()
    return [listing.root / name for name in listing.names]


def _from_files(paths: Sequence[Path], shape: HeightWidth, channels: int | None) -> Images:
    count = channels or (3 if any(is_grey(path) is False for path in paths) else 1)
    images = []
    for path in paths:
        try:
            images.append(decode(path, shape, count))
        except Exception as error:  # a decoder may raise any exception on a damaged file
            raise InputError(f"{path} cannot be read: {reason(error, path)}. Leave it out of X.") from None
    return np.stack(images)
