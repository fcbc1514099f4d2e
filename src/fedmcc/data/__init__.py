"""Data sets by name. To add one, add a module here and a line in DATASETS."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedmcc.data.arrays import Arrays
from fedmcc.data.base import ImageSet, Source
from fedmcc.data.cifar import CIFAR10, CIFAR20, CIFAR100
from fedmcc.data.digits import Digits
from fedmcc.data.folder import Folder
from fedmcc.data.imagenet import ImageNet10, ImageNetDogs
from fedmcc.data.mnist import KMNIST, MNIST, FashionMNIST
from fedmcc.data.stl10 import STL10
from fedmcc.data.synthetic import Synthetic
from fedmcc.data.tiny_imagenet import TinyImageNet
from fedmcc.errors import unknown

DATASETS: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "kmnist": KMNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cifar20": CIFAR20,
    "stl10": STL10,
    "imagenet10": ImageNet10,
    "imagenet-dogs": ImageNetDogs,
    "tiny-imagenet": TinyImageNet,
    "folder": Folder,
    "arrays": Arrays,
    "synthetic": Synthetic,
}
"""Data sets by name, each a frozen dataclass of options with a method `load`; `fedmcc list datasets`.

Examples
--------
>>> from fedmcc import DATASETS
>>> DATASETS["synthetic"](samples=40, classes=3).load().classes
('disc', 'square', 'triangle')
"""

__all__ = ["DATASETS", "ImageSet", "Source", "load_dataset"]


def load_dataset(name: str, **options: Any) -> ImageSet:
    """Load the images of a registered data set.

    Parameters
    ----------
    name
        A key of `DATASETS`.
    **options
        Fields of that entry, such as `limit`.

    Returns
    -------
    ImageSet
        The images, with labels if the data set has any.

    Raises
    ------
    InputError
        If the name or an option does not exist, or the files cannot be read.

    Examples
    --------
    >>> from fedmcc import load_dataset
    >>> load_dataset("digits", limit=100).images.shape
    (100, 1, 8, 8)
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    known, hints = [field.name for field in fields(DATASETS[name])], get_type_hints(DATASETS[name])
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of the data set {name}", option, known)
        choices = get_args(hints[option])
        if get_origin(hints[option]) is Literal and value not in choices:
            raise unknown(option, str(value), [str(choice) for choice in choices])
        if isinstance(value, str) and Path in (hints[option], *choices):
            options[option] = Path(value)
    return DATASETS[name](**options).load()
