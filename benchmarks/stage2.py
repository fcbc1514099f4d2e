"""FedMCC's second stage as printed in the paper against ours, from the same first stage, alternating.

Printed: fresh views in every step, each through the online and the target encoder, four passes. Ours: one
frozen encoder for both (D13), whose features of a few views per image are computed once. Seconds are CPU
seconds, which other work on the machine affects least.

python benchmarks/stage2.py [--threads 1] [--seeds 3] [--views 8] [--rounds 4] [--images 1280] [--fresh]
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmcc.config import parse
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.losses import Quartet
from fedmcc.messages import Task
from fedmcc.methods.base import Memory, Stage
from fedmcc.methods.cluster_contrast import Clustering
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State, copy_into, detached
from fedmcc.runs.build import Experiment, prepare
from fedmcc.training.torch_setup import set_up_torch

SCORES = ("acc", "nmi", "ari")


@dataclass(frozen=True, kw_only=True)
class Printed(Clustering):
    """Algorithm 2 as printed: both views pass through the online and the target encoder in every step."""

    def represent(self, net: Any, a: Tensor, b: Tensor) -> Quartet:
        """The assignments of four encoder passes."""
        online, target = net.online, net.target
        h_a, h_b = without_gradient(lambda: (online.encoder(a), online.encoder(b)))
        targets = without_gradient(lambda: tuple(target.assign(target.encoder(view)) for view in (a, b)))
        return Quartet(online.assign(h_a), online.assign(h_b), *targets)

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Load the model; the target's encoder stays the client's own from the first stage, in eval mode."""
        super().receive(net, task, memory)
        net.target.encoder.eval()


def main() -> None:
    """Measure each seed and print a row for each variant."""
    options = read_options()
    set_up_torch(options.threads)
    results: dict[str, list[dict[str, float]]] = {}
    for seed in range(options.seeds):
        for name, row in measure(seed, options).items():
            results.setdefault(name, []).append(row)
    printed = [row["seconds"] for row in results["printed"]]
    print(
        f"{options.images} digits, 5 clients, 10 rounds of 5 epochs, "
        f"{options.threads} threads, {options.seeds} seeds:"
    )
    print(f"{'':>8} {'seconds':>8} {'faster, median (spread)':>26}  " + "  ".join(SCORES))
    for name, rows in results.items():
        taken = [row["seconds"] for row in rows]
        ratios = sorted(slow / own for slow, own in zip(printed, taken, strict=True))
        ratio = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        scores = "  ".join(f"{mean_of(rows, score)}" for score in SCORES)
        print(f"{name:>8} {statistics.median(taken):8.2f} {ratio:>26}  {scores}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--views", type=int, default=8, help="cached views per image")
    parser.add_argument("--rounds", type=int, default=4, help="of the first stage, 5 epochs each")
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--fresh", action="store_true", help="also measure one encoder with fresh views")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def mean_of(rows: list[dict[str, float]], score: str) -> str:
    """Mean and standard deviation over the seeds."""
    values = [row[score] for row in rows]
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0:.3f}"


def measure(seed: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds and scores of each variant of the second stage, in an order that alternates with the seeds."""
    config = parse(
        {
            "seed": seed,
            "threads": options.threads,
            "data": {"name": "digits", "limit": options.images},
            "views": {"size": 28},
            "partition": {"clients": 5},
            "method": {"name": "fedmcc", "rounds": options.rounds, "hidden": 128, "momentum": 0.95},
            "training": {"batch_size": 128, "learning_rate": 1e-3},
        }
    )
    experiment = prepare(config)
    first, second = experiment.stages
    assert isinstance(second, Clustering)
    with experiment.engine as engine:
        progress = run(first, Progress(detached(experiment.net.state_dict())), experiment, engine)
        states = {client: detached(engine.states[client]) for client in experiment.clients}
    fields = {name: getattr(second, name) for name in ("rounds", "epochs", "shared", "method")}
    variants: dict[str, Stage] = {
        "printed": Printed(**fields),
        "ours": replace(second, views_per_image=options.views),
    }
    if options.fresh:
        variants["fresh"] = replace(second, views_per_image=0)
    order = list(variants.items())[:: 1 if seed % 2 == 0 else -1]
    taken = {name: timed(variant, progress, experiment, states) for name, variant in order}
    return {name: taken[name] for name in variants}


def timed(
    stage: Stage, progress: Progress, experiment: Experiment, states: dict[int, State]
) -> dict[str, float]:
    """Seconds and scores of a stage that starts from the end of the first."""
    clients = list(experiment.engine.clients.values())
    with Embedded(experiment.net, clients) as engine:
        for client, state in states.items():
            engine.states.set_pending(client, state)
        engine.commit(states)
        start = time.process_time()
        end = run(stage, progress, experiment, engine)
        seconds = time.process_time() - start
    copy_into(experiment.net, end.model)
    scores = experiment.scorer.round(experiment.net.online, with_head=True, with_kmeans=False)
    return {"seconds": seconds} | {name: scores[name] for name in SCORES}


def run(stage: Stage, progress: Progress, experiment: Experiment, engine: Any) -> Progress:
    """Run all rounds of a stage."""
    for event in rounds(stage, progress, engine, experiment.clients, experiment.policy(b"")):
        if isinstance(event, Round):
            progress = event.progress
    return progress


if __name__ == "__main__":
    main()
