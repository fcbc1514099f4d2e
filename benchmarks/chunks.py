"""The time of a step in chunks against the same step with the whole batch, CPU seconds of one thread.

ResNet-18 at 32 px, first stage of FedMCC. A chunk costs one more forward pass of the online network, a
quarter of a step, and each chunk reads all weights and adds to all their gradients: the last row is the time
per image of a plain step with a batch as large as the smallest chunk, relative to the large batch.

python benchmarks/chunks.py [--quick] [--repeats 2] [--batch 1024] [--norm batch] [--json FILE]
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from fedmcc.config import parse
from fedmcc.runs.build import build_network
from fedmcc.training.batches import lazy_pairs
from fedmcc.training.loop import Training, train, trainable
from fedmcc.training.torch_setup import set_up_torch
from measuring import parser, ratios, show, spread, time_alternating, write_json

CHUNKS = (64, 128, 256)
SIZE = 32


def main() -> None:
    """Measure the whole batch, each size of chunks and a small batch alternately."""
    arguments = parser(__doc__, repeats=2, quick=1)
    arguments.add_argument("--batch", type=int, default=1024)
    arguments.add_argument("--norm", choices=("batch", "group"), default="batch")
    options = arguments.parse_args()
    set_up_torch(1)
    step = stepper(options.norm, options.batch)
    works: dict[str, Callable[[], object]] = {"whole": lambda: step(options.batch, None)}
    works |= {f"chunks of {chunk}": lambda chunk=chunk: step(options.batch, chunk) for chunk in CHUNKS}
    times = -(-options.batch // CHUNKS[0])
    works[f"{times} batches of {CHUNKS[0]}"] = lambda: [step(CHUNKS[0], None) for _ in range(times)]
    taken = time_alternating(works, options.repeats, time.process_time)
    rows = [
        [name, spread(seconds).text(2, 1000 / options.batch), ratios(seconds, taken["whole"]).text()]
        for name, seconds in taken.items()
    ]
    show((f"ResNet-18, batch {options.batch}, norm {options.norm}", "ms per image", "ratio"), rows)
    write_json(options.json, taken)


def stepper(norm: str, batch: int) -> Callable[[int, int | None], None]:
    """A function that does one step with so many images, in chunks if their size is given."""
    table = {"clusters": 10, "method": {"name": "fedmcc"}, "encoder": {"name": "resnet18", "norm": norm}}
    config = parse({**table, "views": {"preset": "photo", "size": SIZE}})
    net, stage = build_network(config, 3), config.method.stages()[0]
    optimizer = config.training.build_optimizer(trainable(net, stage))
    shape = (batch, 3, SIZE, SIZE)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")

    def step(count: int, chunk: int | None) -> None:
        pairs = lazy_pairs(images[:count], config.views, count, draw, device)
        list(train(net, stage, pairs, optimizer, Training(chunk=chunk).chunks(count)))

    return step


if __name__ == "__main__":
    main()
