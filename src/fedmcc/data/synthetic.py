"""Generated images of coloured shapes: a data set of any size with known classes and no download.

A shape is an approximate signed distance function: negative inside, positive outside.
"""

import colorsys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, UInt8

from fedmcc.data.base import ImageSet, Source
from fedmcc.errors import InputError

Plane = Float[np.ndarray, "h w"]

HUE_SPREAD = 0.15  # standard deviation of the hue within a class; neighbouring classes overlap
NOISE = 0.04  # standard deviation of the pixel noise; pixels range from 0 to 1


@dataclass(frozen=True)
class Synthetic(Source):
    """Generated shapes, one per class; position, angle, size, colour, background and noise vary."""

    samples: int = 1000
    classes: int = 4
    size: int = 32
    channels: Literal[1, 3] = 3
    seed: int = 0

    def read(self) -> ImageSet:
        """Draw the images; equal options give equal images, and every class is equally likely."""
        for name, low, high in (("samples", 1, None), ("classes", 1, len(SHAPES)), ("size", 8, None)):
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                raise InputError(f"data.{name} is {value}: give {low} {f'to {high}' if high else 'or more'}.")
        generator = np.random.default_rng(self.seed)
        labels = generator.integers(self.classes, size=self.samples)
        images = np.stack([self._draw(int(label), generator) for label in labels])
        return ImageSet(images, labels, tuple(SHAPES)[: self.classes], split="all")

    def _draw(self, label: int, generator: np.random.Generator) -> UInt8[np.ndarray, "c size size"]:
        radius = generator.uniform(0.45, 0.75)
        x, y = _grid(self.size, generator, radius)
        distance = list(SHAPES.values())[label](x, y)
        coverage = np.clip(0.5 - distance * radius * self.size / 2, 0, 1)  # the edge is one pixel wide
        colour, background = self._colours(label, generator)
        image = background + coverage * (colour - background)
        noisy = np.clip(image + generator.normal(0, NOISE, image.shape), 0, 1)
        return np.asarray(np.rint(noisy * 255), dtype=np.uint8)

    def _colours(self, label: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw a bright colour near the hue of the class, and a dark grey background."""
        bright, dark = generator.uniform(0.6, 1.0), generator.uniform(0.0, 0.4)
        hue = (label / self.classes + generator.normal(0, HUE_SPREAD)) % 1
        saturation = generator.uniform(0.3, 0.9)
        colour = bright if self.channels == 1 else colorsys.hsv_to_rgb(hue, saturation, bright)
        return np.reshape(colour, (-1, 1, 1)), np.full((self.channels, 1, 1), dark)


def _grid(size: int, generator: np.random.Generator, radius: float) -> tuple[Plane, Plane]:
    """Draw a position and an angle; return coordinates with the shape centred, upright and of radius 1."""
    line = (np.arange(size) + 0.5) * 2 / size - 1
    shift = (1 - radius) * 0.8  # most of the shape stays in the image
    x, y = np.meshgrid(line - generator.uniform(-shift, shift), line - generator.uniform(-shift, shift))
    angle = generator.uniform(-0.4, 0.4)  # radians; small enough that a square does not look like a diamond
    cos, sin = np.cos(angle) / radius, np.sin(angle) / radius
    return cos * x + sin * y, cos * y - sin * x


SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": lambda x, y: np.hypot(x, y) - 0.8,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) - 0.7,
    "triangle": lambda x, y: np.maximum(0.866 * abs(x) - 0.5 * y, y) - 0.45,
    "cross": lambda x, y: np.maximum(np.minimum(abs(x), abs(y)) - 0.25, np.maximum(abs(x), abs(y)) - 0.9),
    "ring": lambda x, y: abs(np.hypot(x, y) - 0.7) - 0.2,
    "bars": lambda x, y: np.maximum(abs(abs(y) - 0.5) - 0.2, abs(x) - 0.85),
    "crescent": lambda x, y: np.maximum(np.hypot(x, y) - 0.85, 0.7 - np.hypot(x - 0.45, y)),
    "frame": lambda x, y: abs(np.maximum(abs(x), abs(y)) - 0.6) - 0.15,
}
