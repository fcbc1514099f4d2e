"""The overhead of a step of FedMCC's first stage over its bare network, in alternating CPU seconds.

The bare network is two online passes, forward and backward, and two target passes, forward, on given tensors.

python benchmarks/step.py [--quick] [--threads 1] [--repeats 5] [--json FILE]
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmcc.config import parse
from fedmcc.losses import Quartet
from fedmcc.networks.momentum import MomentumPair
from fedmcc.runs.build import build_network
from fedmcc.training.batches import view_pairs
from fedmcc.training.loop import train, trainable
from fedmcc.training.torch_setup import set_up_torch
from measuring import parser, ratios, show, spread, time_alternating, write_json


class Case(NamedTuple):
    """An encoder, its images, and the number of images in a step."""

    encoder: str
    preset: str
    channels: int
    size: int
    batch: int


CASES = (
    Case("convnet", "digits", 1, 28, 128),
    Case("resnet18", "photo", 3, 32, 64),
    Case("resnet18", "photo", 3, 96, 16),
    Case("resnet18", "photo", 3, 224, 8),
)
PARTS = ("views", "loss", "optimiser", "target")


def main() -> None:
    """Measure every case and print a row for each."""
    arguments = parser(__doc__, repeats=5, quick=3)
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    set_up_torch(options.threads)
    print(f"{options.threads} threads; shares of the bare network's time in %, median (quartiles)")
    taken = {
        f"{case.encoder} {case.size} px, {case.batch}": time_alternating(
            workload(case), options.repeats, time.process_time
        )
        for case in CASES
    }
    show(("step", "bare, ms", "whole, ms", "beyond, %", *PARTS), [row(*pair) for pair in taken.items()])
    write_json(options.json, {"threads": options.threads, "seconds": taken})


def row(name: str, taken: dict[str, list[float]]) -> list[str]:
    """Milliseconds of a bare and a whole step, and the parts in percent of the bare step."""
    bare, whole = spread(taken["bare"]), spread(taken["step"])
    low, middle, high = (100 * (ratio - 1) for ratio in ratios(taken["step"], taken["bare"]))
    shares = [f"{100 * spread(taken[part]).median / bare.median:.1f}" for part in PARTS]
    times = [bare.text(1, 1000), whole.text(1, 1000)]
    return [name, *times, f"{middle:.1f} ({low:.1f}–{high:.1f})", *shares]


def workload(case: Case) -> dict[str, Callable[[], object]]:
    """Functions that run a whole step, the bare network, and the parts of the overhead."""
    config = parse(
        {
            "clusters": 10,
            "method": {"name": "fedmcc"},
            "encoder": {"name": case.encoder},
            "views": {"preset": case.preset, "size": case.size},
        }
    )
    net, stage = build_network(config, case.channels), config.method.stages()[0]
    assert isinstance(net, MomentumPair)
    optimizer = config.training.build_optimizer(trainable(net, stage))
    shape = (case.batch, case.channels, case.size, case.size)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")

    def pairs() -> list[tuple[Tensor, Tensor]]:
        return list(view_pairs(images, config.views, case.batch, draw, device))

    ((a, b),) = pairs()
    outputs = Quartet(*(output.detach() for output in stage.represent(net, a, b)))
    learned = Quartet(*(output.clone().requires_grad_(place < 2) for place, output in enumerate(outputs)))
    return {
        "bare": lambda: bare(net, a, b),
        "step": lambda: list(train(net, stage, pairs(), optimizer)),
        "views": pairs,
        "loss": lambda: stage.loss(learned).backward(),  # type: ignore[no-untyped-call]
        "optimiser": optimizer.step,
        "target": lambda: stage.after_step(net, None),
    }


def bare(net: MomentumPair, a: Tensor, b: Tensor) -> None:
    """Run the network alone, forward and backward."""
    net.zero_grad()
    with torch.no_grad():
        for view in (a, b):
            net.target.instance(net.target.encoder(view))
    projected = [net.online.instance(net.online.encoder(view)).sum() for view in (a, b)]
    sum(projected).backward()  # type: ignore[union-attr,no-untyped-call]


if __name__ == "__main__":
    main()
