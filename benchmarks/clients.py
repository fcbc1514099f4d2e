"""The cost of registered clients: ten participants of a thousand clients, against ten of ten.

python benchmarks/clients.py [--quick] [--repeats 3] [--clients 1000] [--rounds 10] [--engine pool]
"""

import argparse
import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fedmcc import config
from fedmcc.runs import experiment
from fedmcc.runs.build import prepare
from measuring import parser, ratios, run_fresh, show, spread, write_json

PARTICIPANTS = 10
IMAGES = 32  # per client
SIZE = 16


def main() -> None:
    """Measure both federations alternately, each in a fresh process, and print the ratios."""
    options = read_options()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return
    few, many = [], []
    for _ in range(options.repeats):
        few.append(measure_fresh(PARTICIPANTS, options))
        many.append(measure_fresh(options.clients, options))
    rows, figures = [], {"clients": options.clients, "participants": PARTICIPANTS, "rounds": options.rounds}
    for name in ("seconds_per_round", "peak_megabytes"):
        a, b = ([each[name] for each in runs] for runs in (few, many))
        figures |= {name: [a, b]}
        rows.append([name.replace("_", " "), spread(a).text(3), spread(b).text(3), ratios(b, a).text()])
    show((f"{PARTICIPANTS} take part", f"of {PARTICIPANTS}", f"of {options.clients}", "ratio"), rows)
    write_json(options.json, figures)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    arguments = parser(__doc__, repeats=3, quick=1)
    arguments.add_argument("--clients", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--engine", default="embedded")
    arguments.add_argument("--memory", default="1GB", help="for client states")
    arguments.add_argument("--width", type=int, default=16, help="of the encoder")
    arguments.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    return arguments.parse_args()


def measure_fresh(clients: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure a federation of this many clients in a fresh process."""
    argv = ["--measure", clients]
    for name in ("rounds", "engine", "memory", "width"):
        argv += [f"--{name}", getattr(options, name)]
    return run_fresh(__file__, *argv)


def measure(clients: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds per round, with saving and without scoring, and the peak memory."""
    prepared = prepare(federation(clients, options))
    moments = [time.perf_counter()]
    with tempfile.TemporaryDirectory() as folder:
        run = experiment.start_run(prepared, Path(folder) / "run")
        steps = experiment.steps(prepared, run)
        while len(moments) <= options.rounds:
            if isinstance(next(steps), experiment.Scored):
                moments.append(time.perf_counter())
        steps.close()
    pairs = itertools.pairwise(moments[1:])  # the first round warms up
    seconds = statistics.median(after - before for before, after in pairs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds_per_round": seconds,
        "peak_megabytes": peak / (2**20 if sys.platform == "darwin" else 2**10),
    }


def federation(clients: int, options: argparse.Namespace) -> config.Config:
    """A federation of clients of equal size."""
    table = {
        "clusters": 4,
        "threads": 1,
        "device": "cpu",
        "data": {"name": "synthetic", "samples": IMAGES * clients, "size": SIZE, "channels": 1},
        "encoder": {"width": options.width},
        "method": {"name": "mcc", "rounds": options.rounds + 1},  # the last round is scored
        "partition": {"clients": clients},
        "federation": {"count": PARTICIPANTS},
        "training": {"batch_size": 12},  # two batches each, although sizes differ by an image or two
        "evaluation": {"every": options.rounds + 1},
        "engine": {"name": options.engine, "memory": options.memory},
    }
    return config.parse(table)


if __name__ == "__main__":
    main()
