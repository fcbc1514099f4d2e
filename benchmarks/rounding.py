"""Rounding of small maps as products and of plain convolutions, both against double precision.

A step of MCC with ResNet-18 at 32 px: the loss, the gradient of all weights, and the loss after one step of
Adam on the same views. Adam divides each gradient by its own size, so that weights whose gradient is zero but
for rounding move by the whole learning rate in a direction that rounding decides.

python benchmarks/rounding.py [--seeds 3] [--batch 32]
"""

import argparse
from typing import NamedTuple

import torch
from torch import Tensor

from fedmcc.config import parse
from fedmcc.networks import small_maps
from fedmcc.runs.build import build_network
from fedmcc.training.loop import trainable
from fedmcc.training.torch_setup import set_up_torch
from measuring import show, spread

SIZE = 32
WAYS = {"convolution": 0, "products": small_maps.MAX_POSITIONS}  # positions computed as products


class Step(NamedTuple):
    """Loss and gradient of a step, and the loss after it."""

    loss: float
    gradient: Tensor
    later: float


def main() -> None:
    """Print the relative errors of both ways, and the difference between them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    set_up_torch(1)
    errors: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(options.seeds):
        exact = step(seed, options.batch, torch.float64, 0)
        rounded = {way: step(seed, options.batch, torch.float32, WAYS[way]) for way in WAYS}
        for way, found in rounded.items():
            errors.setdefault(f"{way} against double precision", []).append(compare(found, exact))
        errors.setdefault("products against convolution", []).append(compare(*rounded.values()))
    headings = (
        f"relative difference, {options.seeds} seeds, median (quartiles)",
        "loss",
        "gradient",
        "loss after",
    )
    rows = ([name, *(shown([row[i] for row in rows]) for i in range(3))] for name, rows in errors.items())
    show(headings, rows)


def shown(values: list[float]) -> str:
    """Median and quartiles in powers of ten."""
    low, median, high = spread(values)
    return f"{median:.1e} ({low:.1e}–{high:.1e})"


def compare(one: Step, other: Step) -> tuple[float, ...]:
    """Relative differences of the loss, of the gradient by its norm, and of the loss after the step."""
    gradient = (one.gradient - other.gradient).norm() / other.gradient.norm()
    return (
        abs(one.loss / other.loss - 1),
        float(gradient),
        abs(one.later / other.later - 1),
    )


def step(seed: int, batch: int, dtype: torch.dtype, positions: int) -> Step:
    """One step of Adam from the first weights of a seed."""
    small_maps.MAX_POSITIONS = positions
    table = {"clusters": 10, "seed": seed, "method": {"name": "mcc"}, "encoder": {"name": "resnet18"}}
    config = parse({**table, "views": {"preset": "photo", "size": SIZE}})
    net, stage = build_network(config, 3).to(dtype), config.method.stages()[0]
    optimizer = config.training.build_optimizer(parameters := trainable(net, stage))
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (batch, 3, SIZE, SIZE), dtype=torch.uint8, generator=draw)
    a, b = (config.views(images, draw).to(dtype) for _ in range(2))
    loss = stage.loss(stage.outputs(net, a, b))
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([parameter.grad.double().flatten() for parameter in parameters])
    optimizer.step()
    with torch.no_grad():
        later = stage.loss(stage.outputs(net, a, b))
    return Step(loss.item(), gradient, later.item())


if __name__ == "__main__":
    main()
