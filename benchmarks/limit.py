"""The share of this machine's best matrix product that a training step reaches, with one and two threads.

torch counts the operations of the network, forward and backward; the time is that of the whole step,
including views and optimiser. The limit is the fastest of square matrix products of several sizes.

python benchmarks/limit.py [--quick] [--repeats 5] [--json FILE]
"""

from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmcc.config import parse
from fedmcc.runs.build import build_network
from fedmcc.training.batches import view_pairs
from fedmcc.training.loop import train, trainable
from fedmcc.training.torch_setup import set_up_torch
from measuring import Spread, parser, show, spread, time_alternating, write_json

SIZES = (256, 512, 1024, 2048)
CASES = {"convnet": ("digits", 1, 28, 128), "resnet18": ("photo", 3, 32, 64)}


def main() -> None:
    """Print a row for each encoder and number of threads."""
    options = parser(__doc__, repeats=5, quick=2).parse_args()
    rows = [row for threads in (1, 2) for row in measure(threads, options.repeats)]
    print("Floating point operations per second, in 10⁹; median (quartiles), alternating")
    headings = ("step", "threads", "10⁹ operations", "step", "best product", "share of it")
    show(headings, map(cells, rows))
    write_json(options.json, rows)


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row of the table."""
    achieved, share = Spread(*row["achieved"]), Spread(*row["share"])
    product = f"{row['limit']:.0f} ({row['size']}²)"
    counted = f"{row['operations'] / 1e9:.1f}"
    return [row["case"], str(row["threads"]), counted, achieved.text(1), product, share.text(0, 100) + " %"]


def measure(threads: int, repeats: int) -> list[dict[str, Any]]:
    """Measure steps and products alternately with this many threads."""
    set_up_torch(threads)
    works, operations = {}, {}
    for encoder in CASES:
        works[encoder], operations[encoder] = step(encoder)
    for size in SIZES:
        works[str(size)], operations[str(size)] = product(size)
    taken = time_alternating(works, repeats)
    best = {str(size): operations[str(size)] / min(taken[str(size)]) / 1e9 for size in SIZES}
    size = max(best, key=best.__getitem__)
    rows = []
    for encoder, (_, _, pixels, batch) in CASES.items():
        achieved = spread([operations[encoder] / seconds / 1e9 for seconds in taken[encoder]])
        rows.append(
            {
                "case": f"{encoder} {pixels} px, {batch}",
                "threads": threads,
                "operations": operations[encoder],
                "achieved": achieved,
                "limit": best[size],
                "size": int(size),
                "share": [value / best[size] for value in achieved],
            }
        )
    return rows


def product(size: int) -> tuple[Any, int]:
    """A function that computes matrix products, and their number of operations."""
    a, b = torch.randn(2, size, size, generator=torch.Generator().manual_seed(0))
    out = torch.empty(size, size)
    times = max(1, 1024**3 // size**3)  # a single small product is too short to measure
    return lambda: [torch.mm(a, b, out=out) for _ in range(times)], 2 * size**3 * times


def step(encoder: str) -> tuple[Any, int]:
    """A function that runs a step of FedMCC's first stage, and the number of operations of its network."""
    preset, channels, pixels, batch = CASES[encoder]
    views = {"preset": preset, "size": pixels}
    method = {"name": "fedmcc"}
    config = parse({"clusters": 10, "method": method, "encoder": {"name": encoder}, "views": views})
    net, stage = build_network(config, channels), config.method.stages()[0]
    optimizer = config.training.build_optimizer(trainable(net, stage))
    shape = (batch, channels, pixels, pixels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")

    def work() -> None:
        list(train(net, stage, view_pairs(images, config.views, batch, draw, device), optimizer))

    with FlopCounterMode(display=False) as counter:
        work()
    return work, counter.get_total_flops()


if __name__ == "__main__":
    main()
