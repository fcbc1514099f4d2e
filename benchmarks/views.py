"""Views of this package against the equivalent pipeline of kornia, measured alternately in CPU seconds.

The second table compares them with the least time that memory allows: a view reads the bytes of its image and
writes four bytes per value, at the speed at which this machine copies tensors that do not fit in the cache.

python benchmarks/views.py [--quick] [--threads 1] [--repeats 15] [--json FILE]
"""

import time
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
LARGE = 64  # images of a batch of 224 px
COPIED = 1 << 26  # bytes, twice the last cache of common processors


@dataclass(frozen=True)
class Case:
    """A batch of images, the preset, and the equivalent pipeline of kornia."""

    preset: str
    channels: int
    size: int
    pipeline: Callable[[Views, int], nn.Module]
    batch: int = BATCH


def main() -> None:
    """Measure every case and print a row for each."""
    arguments = parser(__doc__, repeats=15, quick=5)
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    set_up_torch(options.threads)
    print(f"Milliseconds of CPU time per image, {options.threads} threads, median (quartiles)")
    figures = {f"{case.preset}, {case.channels}×{case.size}×{case.size}": case for case in CASES}
    taken = {name: measure(case, options.repeats) for name, case in figures.items()}
    rows = []
    for name, times in taken.items():
        scale = 1000 / figures[name].batch
        each = [spread(times[who]).text(4, scale) for who in ("fedmcc", "kornia")]
        rows.append([name, *each, ratios(times["kornia"], times["fedmcc"]).text(1)])
    show(("views", "fedmcc", "kornia", "ratio"), rows)
    headings = ("views", "bytes moved, kB", "copying them, ms", "fedmcc / copying")
    show(headings, [bound(name, figures[name], times) for name, times in taken.items()])
    write_json(options.json, {"threads": options.threads, "seconds": taken})


def bound(name: str, case: "Case", taken: dict[str, list[float]]) -> list[str]:
    """The bytes that a view must read and write, the time of copying as many, and the ratio to it."""
    moved = 5 * case.channels * case.size**2  # one byte is read and four are written per value
    copying = [moved * seconds / (2 * COPIED) for seconds in taken["copy"]]
    views = [seconds / case.batch for seconds in taken["fedmcc"]]
    return [name, f"{moved / 1000:.0f}", spread(copying).text(4, 1000), ratios(views, copying).text(1)]


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


CASES = (
    Case("photo", 3, 32, photo),
    Case("photo", 3, 96, photo),
    Case("photo", 3, 224, photo, LARGE),
    Case("digits", 1, 28, digits),
)


def measure(case: Case, repeats: int) -> dict[str, list[float]]:
    """CPU seconds per batch of both, and of copying a large tensor, measured alternately."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.batch, case.channels, case.size, case.size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    views = PRESETS[case.preset]
    pipeline = case.pipeline(views, case.size)
    source, target = torch.zeros(2, COPIED, dtype=torch.uint8)
    works = {
        "fedmcc": lambda: views(images, generator),
        "kornia": lambda: pipeline(images.float() / 255),
        "copy": lambda: target.copy_(source),
    }
    return time_alternating(works, repeats, time.process_time)


if __name__ == "__main__":
    main()
