"""What a step of FedMCC's first stage costs beyond its network, measured in turns in one run.

The bare network is two online passes forward and backward and two target passes forward, on ready tensors.

python benchmarks/step.py [--threads 1] [--repeats 7] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmcc.assembly import build_network
from fedmcc.config import parse
from fedmcc.losses import Quartet
from fedmcc.networks.momentum import MomentumPair
from fedmcc.training import pairs_of_views, train, trainable


class Case(NamedTuple):
    """An encoder, the images it sees, and how many of them in a step."""

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
    options = read_options()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, median of {options.repeats}; shares of the bare network's time in %")
    print(f"{'case':>22} {'bare ms':>9} {'step ms':>9} {'beyond %':>9} (quartiles)    " + " ".join(PARTS))
    rows = [measure(case, options.repeats) for case in CASES]
    for row in rows:
        low, middle, high = row["beyond"]
        shares = " ".join(f"{row[part]:{len(part)}.1f}" for part in PARTS)
        times = f"{row['bare']:9.1f} {row['step']:9.1f}"
        print(f"{row['case']:>22} {times} {middle:9.1f} ({low:.1f} to {high:.1f})  {shares}")
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "cases": rows}, indent=2))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Milliseconds of a bare step and of a whole one, and what the parts take of the bare one, in percent."""
    works = workload(case)
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - start)
    rest = {name: times[1:] for name, times in taken.items()}
    bare = statistics.median(rest["bare"])
    beyond = [100 * (step / alone - 1) for step, alone in zip(rest["step"], rest["bare"], strict=True)]
    shares = {part: 100 * statistics.median(rest[part]) / bare for part in PARTS}
    times = {"bare": 1000 * bare, "step": 1000 * statistics.median(rest["step"])}
    return {
        "case": f"{case.encoder} {case.size} px, {case.batch}",
        **times,
        "beyond": statistics.quantiles(beyond),
    } | shares


def workload(case: Case) -> dict[str, Callable[[], object]]:
    """A step as training does it, the bare network, and the parts that are beyond it."""
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
        return list(pairs_of_views(images, config.views, case.batch, draw, device))

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
    """The network alone."""
    net.zero_grad()
    with torch.no_grad():
        for view in (a, b):
            net.target.instance(net.target.encoder(view))
    projected = [net.online.instance(net.online.encoder(view)).sum() for view in (a, b)]
    sum(projected).backward()  # type: ignore[union-attr,no-untyped-call]


if __name__ == "__main__":
    main()
