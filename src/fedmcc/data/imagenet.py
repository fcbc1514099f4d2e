"""ImageNet-10 and ImageNet-Dogs, subsets of a local copy of ImageNet's training images.

The class lists are those published with DAC (Chang et al., ICCV 2017), which CC uses as well.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedmcc.data.image_files import ImageFiles, Listing
from fedmcc.errors import InputError


@dataclass(frozen=True)
class ImageNet10(ImageFiles):
    """13,000 photographs of 10 distinct classes."""

    name: ClassVar[str] = "imagenet10"
    wnids: ClassVar[dict[str, str]] = {
        "n02056570": "king penguin",
        "n02085936": "Maltese dog",
        "n02128757": "snow leopard",
        "n02690373": "airliner",
        "n02692877": "airship",
        "n03095699": "container ship",
        "n04254680": "soccer ball",
        "n04285008": "sports car",
        "n04467665": "trailer truck",
        "n07747607": "orange",
    }
    size: int = 224

    def listing(self) -> Listing:
        """List the files of the selected classes, class by class."""
        root = self._root()
        files = [sorted(path for path in (root / wnid).iterdir() if _visible(path)) for wnid in self.wnids]
        names = tuple(path.relative_to(root).as_posix() for paths in files for path in paths)
        labels = tuple(label for label, paths in enumerate(files) for _ in paths)
        if not names:
            raise InputError(f"The class folders in {root} are empty: put ImageNet's training images there.")
        return Listing(root, names, labels, tuple(self.wnids.values()), split="train")

    def _root(self) -> Path:
        if self.root is None:
            raise InputError(
                f"The data set '{self.name}' needs data.root: "
                "set it to the folder that contains ImageNet's train folder."
            )
        root = self.root.expanduser()
        root = root / "train" if (root / "train").is_dir() else root
        missing = [wnid for wnid in self.wnids if not (root / wnid).is_dir()]
        if missing:
            raise InputError(
                f"{root} lacks {len(missing)} of the {len(self.wnids)} class folders of {self.name}: "
                f"{', '.join(missing)}. Set data.root to the folder that contains ImageNet's train folder."
            )
        return root


@dataclass(frozen=True)
class ImageNetDogs(ImageNet10):
    """19,500 photographs of 15 similar dog breeds."""

    name: ClassVar[str] = "imagenet-dogs"
    wnids: ClassVar[dict[str, str]] = {
        "n02085936": "Maltese dog",
        "n02086646": "Blenheim spaniel",
        "n02088238": "basset",
        "n02091467": "Norwegian elkhound",
        "n02097130": "giant schnauzer",
        "n02099601": "golden retriever",
        "n02101388": "Brittany spaniel",
        "n02101556": "clumber",
        "n02102177": "Welsh springer spaniel",
        "n02105056": "groenendael",
        "n02105412": "kelpie",
        "n02105855": "Shetland sheepdog",
        "n02107142": "Doberman",
        "n02110958": "pug",
        "n02112137": "chow",
    }


def _visible(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")
