"""Convolutions of small maps as matrix products against plain convolutions: layers, and whole steps of MCC.

python benchmarks/small_maps.py [--quick] [--repeats 9] [--json FILE]

CPU seconds of one thread, in turns in one run.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from fedmcc.config import parse
from fedmcc.networks import small_maps
from fedmcc.runs.build import build_network
from fedmcc.training.batches import view_pairs
from fedmcc.training.loop import train, trainable
from fedmcc.training.torch_setup import set_up_torch
from measuring import parser, ratios, show, spread, time_alternating, write_json

BATCH = 64
LAYERS = {  # inputs, outputs, kernel, stride, padding, length of the map
    "1×1 → 1×1, 3×3 kernel, 512 → 512": (512, 512, 3, 1, 1, 1),
    "2×2 → 1×1, 3×3 kernel, 256 → 512": (256, 512, 3, 2, 1, 2),
    "2×2 → 2×2, 3×3 kernel, 256 → 256": (256, 256, 3, 1, 1, 2),
    "4×4 → 2×2, 3×3 kernel, 128 → 256": (128, 256, 3, 2, 1, 4),
    "3×3 → 3×3, 3×3 kernel, 128 → 128": (128, 128, 3, 1, 1, 3),
    "4×4 → 4×4, 3×3 kernel, 128 → 128": (128, 128, 3, 1, 1, 4),
    "1×1 → 1×1, 1×1 kernel, 512 → 2048": (512, 2048, 1, 1, 0, 1),
    "2×2 → 1×1, 1×1 kernel, 256 → 512": (256, 512, 1, 2, 0, 2),
    "2×2 → 2×2, 1×1 kernel, 1024 → 256": (1024, 256, 1, 1, 0, 2),
    "4×4 → 2×2, 1×1 kernel, 128 → 256": (128, 256, 1, 2, 0, 4),
    "3×3 → 1×1, 3×3 kernel, 64 → 128": (64, 128, 3, 1, 0, 3),
    "4×4 → 1×1, 4×4 kernel, 128 → 128": (128, 128, 4, 1, 0, 4),
}
STEPS = {  # encoder, preset, channels, length of the images, batch
    "ResNet-18, 32 px": ("resnet18", "photo", 3, 32, 64),
    "ResNet-50, 32 px": ("resnet50", "photo", 3, 32, 64),
    "ResNet-18, 28 px": ("resnet18", "digits", 1, 28, 128),
    "convnet, 28 px": ("convnet", "digits", 1, 28, 128),
    "convnet, 32 px": ("convnet", "photo", 3, 32, 128),
}
WAYS = {"convolution": 0, "products": 99}  # of a layer: the most positions that are computed as products
Works = dict[str, Callable[[], object]]


def main() -> None:
    """A table of layers, forward and with gradients, and one of steps."""
    options = parser(__doc__, repeats=9, quick=3).parse_args()
    set_up_torch(1)
    chosen = small_maps.MAX_POSITIONS
    print(
        f"Milliseconds of CPU time, one thread, median (quartiles); products up to {chosen} positions an axis"
    )
    tables = {
        f"forward, batch {BATCH}": {name: layer(case, learn=False) for name, case in LAYERS.items()},
        f"forward and backward, batch {BATCH}": {
            name: layer(case, learn=True) for name, case in LAYERS.items()
        },
        "step of MCC": {name: step(*case, chosen) for name, case in STEPS.items()},
    }
    figures = {}
    for title, rows in tables.items():
        taken = {
            name: time_alternating(works, options.repeats, time.process_time) for name, works in rows.items()
        }
        show((title, *WAYS, "ratio"), [row(name, times) for name, times in taken.items()])
        figures[title] = taken
    write_json(options.json, figures)


def row(name: str, taken: dict[str, list[float]]) -> list[str]:
    """Milliseconds of both ways, and how many times faster products are."""
    both = [spread(taken[way]).text(1, 1000) for way in WAYS]
    return [name, *both, ratios(taken["convolution"], taken["products"]).text()]


def layer(case: tuple[int, ...], learn: bool) -> Works:
    """A layer on a batch, both ways."""
    inputs, outputs, kernel, stride, padding, length = case
    conv = small_maps.Conv2d(inputs, outputs, kernel, stride, padding).to(memory_format=torch.channels_last)
    maps = torch.randn(BATCH, inputs, length, length).to(memory_format=torch.channels_last).requires_grad_()

    def work(positions: int) -> None:
        small_maps.MAX_POSITIONS = positions
        conv.weight.grad = maps.grad = None
        with torch.set_grad_enabled(learn):
            output = conv(maps)
        if learn:
            output.backward(torch.ones_like(output))

    return {way: lambda positions=positions: work(positions) for way, positions in WAYS.items()}


def step(encoder: str, preset: str, channels: int, length: int, batch: int, chosen: int) -> Works:
    """A whole step of training, both ways."""
    views = {"preset": preset, "size": length}
    config = parse({"clusters": 10, "method": {"name": "mcc"}, "encoder": {"name": encoder}, "views": views})
    net, stage = build_network(config, channels), config.method.stages()[0]
    optimizer = config.training.build_optimizer(trainable(net, stage))
    shape = (batch, channels, length, length)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")

    def work(positions: int) -> None:
        small_maps.MAX_POSITIONS = positions
        list(train(net, stage, view_pairs(images, config.views, batch, draw, device), optimizer))

    return {"convolution": lambda: work(0), "products": lambda: work(chosen)}


if __name__ == "__main__":
    main()
