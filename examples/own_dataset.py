"""Add a data set in one file, here stripes in three directions: python examples/own_dataset.py"""

import argparse
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import fedmcc
from fedmcc import DATASETS, ImageSet, Source


@dataclass(frozen=True)
class Stripes(Source):
    """Grey stripes; the class of an image is their direction."""

    views: ClassVar[str] = "none"  # default preset of views; the configuration below sets its own
    samples: int = 400
    directions: int = 3
    size: int = 16
    seed: int = 0

    def read(self) -> ImageSet:
        """Images as uint8 of shape (samples, channels, height, width); equal options give equal images."""
        draw = np.random.default_rng(self.seed)
        labels = draw.integers(self.directions, size=self.samples)
        angle = (labels * np.pi / self.directions)[:, None, None]
        phase = draw.uniform(0, 2 * np.pi, (self.samples, 1, 1))
        y, x = np.mgrid[: self.size, : self.size]
        waves = np.sin(x * np.cos(angle) + y * np.sin(angle) + phase)
        noisy = 0.5 + 0.3 * waves + draw.normal(0, 0.1, waves.shape)
        images = np.rint(noisy.clip(0, 1) * 255).astype(np.uint8)[:, None]
        classes = tuple(f"{180 * number // self.directions} degrees" for number in range(self.directions))
        return ImageSet(images, labels, classes, split="all")


DATASETS["stripes"] = Stripes  # inside fedmcc: a line in data/__init__.py

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    config = fedmcc.load_config(
        {
            "data": {"name": "stripes"},
            "views": {"crop": [0.5, 1.0], "rotation": 10, "padding": "reflection", "brightness": 0.3},
            "method": {"rounds": parser.parse_args().epochs},
        }
    )
    run = fedmcc.run(config)
    print(run.path, run.read_json("scores.json")["scores"])
