"""Clients whose images come from different devices, as between hospitals, with and without other classes."""

from collections.abc import Callable

import numpy as np
from scipy import ndimage

from fedmcc.data.base import ImageSet

CLIENTS, CLASSES, SIZE = 5, 10, 28
SETS = {"digits": 1_797, "mnist": 2_000, "kmnist": 4_000}  # images
SOURCES: dict[str, dict[str, str]] = {"digits": {}, "mnist": {}, "kmnist": {"split": "test"}}
LOOKS = {
    "same": "one device",
    "mild": "contrast, blur, noise, brightness",
    "geometry": "rotation and scale",
    "strong": "inverted, faint, noisy, thick",
}
PARTITIONS = {"iid": "IID", "dirichlet": "Dirichlet .3", "by_class": "two classes each"}

Pixels = np.ndarray  # (images, height, width) in [0, 1]
Device = Callable[[Pixels], Pixels]


def divided(labels: np.ndarray, partition: str, draw: np.random.Generator) -> np.ndarray:
    """The client of each image."""
    if partition == "iid":
        return draw.permutation(len(labels)) % CLIENTS
    if partition == "by_class":
        return draw.permutation(CLASSES)[labels] // (CLASSES // CLIENTS)
    groups = np.empty(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        rows = draw.permutation(np.flatnonzero(labels == label))
        ends = (draw.dirichlet([0.3] * CLIENTS).cumsum() * len(rows)).astype(int)
        for client, held in enumerate(np.split(rows, ends[:-1])):
            groups[held] = client
    return groups


def pixels(images: ImageSet) -> Pixels:
    """Images in grey of one size, between 0 and 1."""
    grey = images.images.mean(axis=1) / 255
    return ndimage.zoom(grey, (1, SIZE / grey.shape[1], SIZE / grey.shape[2]), order=1)


def scanned(images: Pixels, groups: np.ndarray, looks: list[Device]) -> Pixels:
    """The images as the device of their client records them."""
    seen = np.empty_like(images)
    for client, device in enumerate(looks):
        seen[groups == client] = device(images[groups == client])
    return seen


def devices(look: str, draw: np.random.Generator) -> list[Device]:
    """The device of each client."""

    def noise(images: Pixels, scale: float) -> Pixels:
        return images + scale * draw.standard_normal(images.shape)

    def blurred(images: Pixels, width: float) -> Pixels:
        return ndimage.gaussian_filter(images, (0, width, width))

    return {
        "same": [lambda v: v] * CLIENTS,
        "mild": [
            lambda v: v,
            lambda v: 0.6 * v + 0.1,
            lambda v: blurred(v, 0.8),
            lambda v: noise(v, 0.08),
            lambda v: v**0.5,
        ],
        "strong": [
            lambda v: v,
            lambda v: 1 - v,
            lambda v: 0.5 * blurred(v, 1.2) + 0.2,
            lambda v: noise(0.6 * v + 0.2, 0.15),
            lambda v: ndimage.grey_dilation(v, (1, 3, 3)),
        ],
        "geometry": [turned(12 * (c - 2), (0.8, 1.0, 1.2, 0.9, 1.1)[c]) for c in range(CLIENTS)],
    }[look]


def turned(degrees: float, scale: float) -> Device:
    """A device that turns and scales around the middle."""
    angle, middle = np.deg2rad(degrees), (SIZE - 1) / 2
    map_ = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shift = middle - map_ @ [middle, middle]
    return lambda v: np.stack([ndimage.affine_transform(each, map_, shift, order=1) for each in v])
