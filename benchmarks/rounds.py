"""The cost of a round beyond its clients' training, and a comparison of the engines.

Overhead: everything except the views, passes, loss, optimiser and moving average that the run itself times.
Engines: ten clients with convnet, alternating, each in a fresh process, with a digest of the final model.
Averaging: ten ResNet-18 networks, the peak memory of a fresh process above the inputs.

python benchmarks/rounds.py [--quick] [--repeats 3] [--parts overhead registered ...] [--json FILE]
"""

import hashlib
import json
import os
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmcc import config
from fedmcc.numerics.state_dicts import detached, select, size_in_bytes, weighted_average
from fedmcc.runs import experiment
from fedmcc.runs.build import build_network, prepare
from fedmcc.training.memory import bytes_in_use
from fedmcc.training.timing import measuring
from fedmcc.training.torch_setup import set_up_torch
from measuring import Spread, parser, peak_bytes, ratios, reset_peak, run_fresh, show, spread, write_json

TRAINING = ("views", "forward", "loss", "backward", "optimiser", "after step")
OVERHEAD = ("messages", "receive", "reply", "admission", "averaging", "checkpoint", "rest")
ENGINES = {"embedded, 1 thread": ("embedded", 1), "embedded, 2": ("embedded", 2), "pool of 2": ("pool", 1)}
ROUNDS = 3  # measured, after one that warms up


class Size(NamedTuple):
    """The size of a federation."""

    clients: int
    participants: int
    images: int = 16  # per client
    encoder: str = "convnet"
    width: int = 16


OVERHEADS = (Size(5, 5), Size(50, 50), Size(500, 500))
REGISTERED = (50, 500)
GROWTHS = (
    Size(10, 10),
    Size(10, 10, images=64),
    Size(10, 10, images=256),
    Size(10, 10, width=32),
    Size(10, 10, width=64),
    Size(10, 10, encoder="resnet18"),
)


def main() -> None:
    """Measure each part and print its table."""
    options = read_options()
    if options.measure:
        print(MEASURED[options.measure[0]](*options.measure[1:]))
        return
    figures = {name: PARTS[name](options.repeats) for name in options.parts}
    write_json(options.json, figures)


def read_options() -> Any:
    """Parse the command line."""
    arguments = parser(__doc__, repeats=3, quick=2)
    arguments.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments.add_argument("--measure", nargs="+", help=SUPPRESS)
    return arguments.parse_args()


def table(sizes: tuple[Size, ...], title: str) -> list[dict[str, Any]]:
    """Print the overhead of rounds, each size in a fresh process; quartiles are over its rounds."""
    rows = [run_fresh(__file__, "--measure", "overhead", *size) | {"size": size._asdict()} for size in sizes]
    headings = (title, "model, MB", "beyond training, ms", "per participant", "share, %", *OVERHEAD)
    show(headings, [overhead_cells(row) for row in rows])
    return rows


def compare_registered(repeats: int) -> dict[int, list[float]]:
    """Overhead relative to training in rounds of ten participants of few clients and of many.

    Training is the same for both, and load affects it as much as the overhead.
    """
    overheads: dict[int, list[float]] = {clients: [] for clients in REGISTERED}
    for _ in range(repeats):
        for clients, taken in overheads.items():
            row = run_fresh(__file__, "--measure", "overhead", *Size(clients, 10))
            taken.append(row["share"] / (1 - row["share"]))
    few = overheads[REGISTERED[0]]
    rows = [
        [str(n), spread(taken).text(1, 100), ratios(taken, few).text(2)] for n, taken in overheads.items()
    ]
    show(("registered clients, of whom 10 take part", "beyond training, % of it", "times the first"), rows)
    return overheads


def overhead_cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row: the federation, its overhead, and the parts of it in milliseconds."""
    size, beyond = Size(**row["size"]), Spread(*row["beyond"])
    name = f"{size.participants} of {size.clients}, {size.images} images, {size.encoder}"
    name += f" {size.width}" if size.encoder == "convnet" else ""
    each = 1e3 * beyond.median / size.participants
    parts = [f"{1e3 * row['parts'][part]:.1f}" for part in OVERHEAD]
    return [
        name,
        f"{row['megabytes']:.1f}",
        beyond.text(0, 1e3),
        f"{each:.1f}",
        f"{100 * row['share']:.0f}",
        *parts,
    ]


def overhead(*argv: str) -> str:
    """Overhead of each round in seconds, and the mean of its parts, as JSON."""
    clients, participants, images = map(int, argv[:3])
    prepared = prepare(federation(Size(clients, participants, images, argv[3], int(argv[4]))))
    beyond, parts, training = [], dict.fromkeys(OVERHEAD, 0.0), 0.0
    for number, seconds in enumerate(per_round(prepared)):
        if number:
            beyond.append(sum(seconds.get(part, 0.0) for part in OVERHEAD))
            training += sum(seconds.get(part, 0.0) for part in TRAINING)
            parts = {part: parts[part] + seconds.get(part, 0.0) / ROUNDS for part in OVERHEAD}
    share = sum(beyond) / (sum(beyond) + training)
    return as_json(
        beyond=spread(beyond),
        parts=parts,
        share=share,
        megabytes=size_in_bytes(prepared.net.state_dict()) / 1e6,
    )


def per_round(prepared: Any) -> Iterator[dict[str, float]]:
    """Seconds of the parts of each round; these rounds are not scored."""
    before: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, measuring() as clock:
        steps = experiment.steps(prepared, experiment.start_run(prepared, Path(folder) / "run"))
        for _ in range(1 + ROUNDS):
            while not isinstance(next(steps), experiment.Scored):
                pass
            clock.mark()
            now = clock.parts()
            yield {part: seconds - before.get(part, 0.0) for part, seconds in now.items()}
            before = now
        steps.close()


def federation(size: Size) -> config.Config:
    """A federation of clients of equal size on synthetic images."""
    return config.parse(
        {
            "clusters": 4,
            "threads": 1,
            "device": "cpu",
            "data": {"name": "synthetic", "samples": size.images * size.clients, "size": 16, "channels": 1},
            "encoder": {"name": size.encoder} | ({"width": size.width} if size.encoder == "convnet" else {}),
            "method": {"name": "mcc", "rounds": ROUNDS + 2},  # the last round is scored
            "partition": {"clients": size.clients},
            "federation": {"count": size.participants},
            "training": {"batch_size": 12},
            "evaluation": {"every": ROUNDS + 2},
        }
    )


def compare_engines(repeats: int) -> dict[str, Any]:
    """Compare the engines on rounds of ten clients, alternating, and check that results are bit-identical."""
    taken: dict[str, list[float]] = {name: [] for name in ENGINES}
    bits: dict[str, set[str]] = {name: set() for name in ENGINES}
    for _ in range(repeats):
        for name, (engine, threads) in ENGINES.items():
            result = run_fresh(__file__, "--measure", "engine", engine, threads)
            taken[name].append(result["seconds"])
            bits[name].add(result["bits"])
    first = next(iter(ENGINES))
    faster = {name: ratios(taken[first], taken[name]) for name in ENGINES}
    same = {name: bits[name] == bits[first] for name in ENGINES}
    rows = [
        [name, spread(taken[name]).text(2), faster[name].text(2), "the same" if same[name] else "different"]
        for name in ENGINES
    ]
    show(("ten clients of 512 images, convnet 28 px", "seconds", f"times {first}", "bits"), rows)
    if not same["pool of 2"]:
        raise SystemExit("The model of the pool differs from that of the embedded engine with one thread.")
    return {"seconds": taken, "faster": faster, "same": same}


def engine(name: str, threads: str) -> str:
    """Seconds of the second and third round, without scoring and saving, and a digest of the model."""
    table = {
        "clusters": 10,
        "threads": int(threads),
        "device": "cpu",
        "data": {"name": "synthetic", "samples": 5120, "size": 28, "channels": 1},
        "method": {"name": "mcc", "rounds": 4},  # the first warms up, the last is scored
        "partition": {"clients": 10},
        "evaluation": {"every": 4},
        "engine": {"name": name} | ({"workers": 2} if name == "pool" else {}),
    }
    prepared = prepare(config.parse(table))
    with tempfile.TemporaryDirectory() as folder:
        run = experiment.start_run(prepared, Path(folder) / "run")
        steps = experiment.steps(prepared, run)
        rows = (event.row for event in steps if isinstance(event, experiment.Scored))
        _, *taken = (row["seconds"] for row in islice(rows, 3))
        (model,) = run.resume_folder.glob("model-*")
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        steps.close()
    return as_json(seconds=sum(taken), bits=digest)


def compare_averages(repeats: int) -> dict[str, Any]:
    """Measure averages of ten ResNet-18 networks, each in a fresh process."""
    results = [run_fresh(__file__, "--measure", "average") for _ in range(repeats)]
    seconds, copies = (spread([each[name] for each in results]) for name in ("seconds", "copies"))
    rows = [[f"{results[0]['megabytes']:.0f}", seconds.text(3), copies.text(2)]]
    show(("average of ten ResNet-18s, MB each", "seconds", "peak above the inputs, models"), rows)
    return {"seconds": seconds, "copies": copies}


def average() -> str:
    """Seconds of one average, and its peak memory above the inputs in models."""
    set_up_torch(1)
    table = {"clusters": 10, "method": {"name": "fedmcc"}, "encoder": {"name": "resnet18"}}
    settings = config.parse(table | {"views": {"size": 32}})
    net, stage = build_network(settings, 3), settings.method.stages()[0]
    states = [detached(select(net.state_dict(), stage.shared)) for _ in range(10)]
    weighted_average([{"w": torch.ones(9)}] * 2, [1.0, 1.0])
    size, before = size_in_bytes(states[0]), bytes_in_use(torch.device("cpu"))
    reset_peak()
    start = time.perf_counter()
    weighted_average(states, [float(number) for number in range(1, 11)])
    seconds = time.perf_counter() - start
    return as_json(seconds=seconds, copies=(peak_bytes() - before) / size, megabytes=size / 1e6)


def as_json(**figures: Any) -> str:
    """The figures as one line of JSON."""
    return json.dumps(figures)


PARTS = {
    "overhead": lambda _: table(OVERHEADS, "participants"),
    "registered": compare_registered,
    "growth": lambda _: table(GROWTHS, "growth"),
    "engines": compare_engines,
    "averaging": compare_averages,
}
MEASURED = {"overhead": overhead, "engine": engine, "average": average}

if __name__ == "__main__":
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line sets it
    main()
