"""Views of this package against kornia's equivalent pipeline, measured in turns in one run.

python benchmarks/views.py [--threads 2] [--repeats 15] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import atan, degrees
from pathlib import Path

import kornia.augmentation as kornia
import torch
from torch import Tensor, nn

from fedmcc.views import PRESETS, Views

BATCH = 256


@dataclass(frozen=True)
class Case:
    """A batch of images and the two ways to make a view of each."""

    preset: str
    channels: int
    size: int
    rival: Callable[[Views, int], nn.Module]


def main() -> None:
    """Measure every case and print a row for each."""
    options = read_options()
    torch.set_num_threads(options.threads)
    print(f"batch {BATCH}, {options.threads} threads, median of {options.repeats} (quartiles), ms per image")
    print(f"{'views':>8} {'image':>8} {'fedmcc':>24} {'kornia':>24} {'ratio':>6}")
    rows = [measure(case, options.repeats) for case in CASES]
    for row in rows:
        ours, theirs = (spread(row[name]) for name in ("fedmcc", "kornia"))
        print(f"{row['preset']:>8} {row['image']:>8} {ours:>24} {theirs:>24} {row['ratio']:6.1f}")
    if options.json:
        options.json.write_text(
            json.dumps({"threads": options.threads, "batch": BATCH, "cases": rows}, indent=2)
        )


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def photo(views: Views, size: int) -> nn.Module:
    """Kornia's form of the preset `photo`."""
    strengths = (views.brightness, views.contrast, views.saturation, views.hue)
    return nn.Sequential(
        kornia.RandomResizedCrop((size, size), scale=views.crop, ratio=views.ratio),
        kornia.RandomHorizontalFlip(p=views.flip),
        kornia.ColorJitter(*strengths, p=views.jitter),
        kornia.RandomGrayscale(p=views.greyscale),
    )


def digits(views: Views, size: int) -> nn.Module:
    """Kornia's form of the preset `digits`."""
    zoom = (views.crop[0] ** 0.5, views.crop[1] ** 0.5)
    far = views.shift / 2  # kornia counts whole widths
    tilt = degrees(atan(views.shear))
    return nn.Sequential(
        kornia.RandomAffine(views.rotation, translate=(far, far), scale=zoom + zoom, shear=tilt, p=1.0),
        kornia.RandomBrightness((1 - views.brightness, 1 + views.brightness), p=1.0),
    )


CASES = (Case("photo", 3, 32, photo), Case("photo", 3, 96, photo), Case("digits", 1, 28, digits))


def measure(case: Case, repeats: int) -> dict[str, object]:
    """Quartiles of the time per image in ms of both, taken in turns so that both meet the same machine."""
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, case.channels, case.size, case.size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    views = PRESETS[case.preset]
    rival = case.rival(views, case.size)

    def kornia_views() -> Tensor:
        return rival(images.float() / 255)

    times: dict[str, list[float]] = {"fedmcc": [], "kornia": []}
    for _ in range(repeats + 2):
        times["fedmcc"].append(seconds(lambda: views(images, generator)))
        times["kornia"].append(seconds(kornia_views))
    quartiles = {
        name: statistics.quantiles([1000 * t / BATCH for t in taken[2:]]) for name, taken in times.items()
    }
    ratio = quartiles["kornia"][1] / quartiles["fedmcc"][1]
    image = f"{case.channels}x{case.size}x{case.size}"
    return {"preset": case.preset, "image": image, **quartiles, "ratio": round(ratio, 2)}


def seconds(work: Callable[[], Tensor]) -> float:
    """How long it takes once."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(quartiles: object) -> str:
    """`median (lower-upper)`."""
    assert isinstance(quartiles, list)
    low, middle, high = quartiles
    return f"{middle:.4f} ({low:.4f}-{high:.4f})"


if __name__ == "__main__":
    main()
