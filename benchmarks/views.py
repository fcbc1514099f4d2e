"""Views of this package against the equivalent pipeline of kornia, measured alternately.

python benchmarks/views.py [--quick] [--threads 2] [--repeats 15] [--json FILE]
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import atan, degrees

import kornia.augmentation as kornia
import torch
from torch import nn

from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import PRESETS, Views
from measuring import parser, ratios, show, spread, time_alternating, write_json

BATCH = 256


@dataclass(frozen=True)
class Case:
    """A batch of images, the preset, and the equivalent pipeline of kornia."""

    preset: str
    channels: int
    size: int
    pipeline: Callable[[Views, int], nn.Module]


def main() -> None:
    """Measure every case and print a row for each."""
    arguments = parser(__doc__, repeats=15, quick=5)
    arguments.add_argument("--threads", type=int, default=2)
    options = arguments.parse_args()
    set_up_torch(options.threads)
    print(f"Milliseconds per image, batch {BATCH}, {options.threads} threads, median (quartiles)")
    figures = {f"{case.preset}, {case.channels}×{case.size}×{case.size}": case for case in CASES}
    taken = {name: measure(case, options.repeats) for name, case in figures.items()}
    rows = []
    for name, times in taken.items():
        each = [spread(times[who]).text(4, 1000 / BATCH) for who in ("fedmcc", "kornia")]
        rows.append([name, *each, ratios(times["kornia"], times["fedmcc"]).text(1)])
    show(("views", "fedmcc", "kornia", "ratio"), rows)
    write_json(options.json, {"threads": options.threads, "batch": BATCH, "seconds": taken})


def photo(views: Views, size: int) -> nn.Module:
    """The preset `photo` in kornia."""
    strengths = (views.brightness, views.contrast, views.saturation, views.hue)
    return nn.Sequential(
        kornia.RandomResizedCrop((size, size), scale=views.crop, ratio=views.ratio),
        kornia.RandomHorizontalFlip(p=views.flip),
        kornia.ColorJitter(*strengths, p=views.jitter),
        kornia.RandomGrayscale(p=views.greyscale),
    )


def digits(views: Views, size: int) -> nn.Module:
    """The preset `digits` in kornia."""
    zoom = (views.crop[0] ** 0.5, views.crop[1] ** 0.5)
    far = views.shift / 2  # kornia counts in whole widths
    tilt = degrees(atan(views.shear))
    return nn.Sequential(
        kornia.RandomAffine(views.rotation, translate=(far, far), scale=zoom + zoom, shear=tilt, p=1.0),
        kornia.RandomBrightness((1 - views.brightness, 1 + views.brightness), p=1.0),
    )


CASES = (Case("photo", 3, 32, photo), Case("photo", 3, 96, photo), Case("digits", 1, 28, digits))


def measure(case: Case, repeats: int) -> dict[str, list[float]]:
    """Seconds per batch of both, measured alternately."""
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, case.channels, case.size, case.size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    views = PRESETS[case.preset]
    pipeline = case.pipeline(views, case.size)
    return time_alternating(
        {"fedmcc": lambda: views(images, generator), "kornia": lambda: pipeline(images.float() / 255)},
        repeats,
    )


if __name__ == "__main__":
    main()
