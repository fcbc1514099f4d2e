"""The cost of Flower's transport: a round of one site with ResNet-18, and with a network of 400 MB.

python benchmarks/flower.py [--megabytes 45 400] [--proxy] [--json FILE]

With --proxy through nginx, as operators run it; otherwise directly. Both over TLS, with keys and signatures.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from fedmcc import config
from fedmcc.deployment.flower import processes
from fedmcc.deployment.server.launch import running_server
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import submit
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec
from measuring import show, write_json

TIMEOUT = 1800.0  # seconds
FEATURES = 512  # of ResNet-18
RESNET18_MEGABYTES = 45  # with a small projector
IMAGES = 8
COLUMNS = ("megabytes", "seconds", "waiting", "transport", "training", "server", "megabytes_per_second")


def main() -> None:
    """Run two rounds for each size and print the second, which is warmed up."""
    options = read_options()
    rows = []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), megabytes, options.proxy))
    show(
        [column.replace("_", " ") for column in COLUMNS],
        [[f"{row[column]:.1f}" for column in COLUMNS] for row in rows],
    )
    write_json(options.json, rows)


def measure(home: Path, megabytes: int, proxy: bool) -> dict[str, float]:
    """Bytes and seconds of the second of two rounds in which one site trains on a few images."""
    images = home / "images"
    images.mkdir()
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.png")
    with federation(home, images, recipe(megabytes), proxy) as run:
        row = wait_for(run)
    known = row["waiting"] + row["transport"] + row["training"]
    both = (row["bytes_down"] + row["bytes_up"]) / 1e6
    facts = {"megabytes": both / 2, "server": row["seconds"] - known}
    return {**row, **facts, "megabytes_per_second": both / row["transport"]}


@contextmanager
def federation(home: Path, images: Path, text: str, proxied: bool) -> Iterator[Path]:
    """Run a federation with TLS and keys; yields the run directory."""
    spec = FederationSpec("127.0.0.1", processes.free_port(), processes.free_port(), ("a",))
    operator = create_federation(home / "federation", spec, 1)
    site = (sys.executable, "-m", "fedmcc", "site", "start", str(operator.site("a").path))
    argv = (*site, "--data", str(images))
    policy = JoinPolicy(wait=TIMEOUT, round_timeout=TIMEOUT)
    running = processes.running(argv, home / "site", home / "site.log")
    with running_server(operator, proxied) as server, running:
        submit(server, RunRequest(text, home / "run", policy))
        yield home / "run"


def recipe(megabytes: int) -> str:
    """A recipe with ResNet-18 and a projector that brings the network to this size."""
    width = max(FEATURES, int((megabytes - RESNET18_MEGABYTES) * 1e6 / 4 / (FEATURES + 128)))
    return config.dump(
        config.parse(
            {
                "clusters": 2,
                "threads": 1,
                "device": "cpu",
                "data": {"name": "folder", "size": 32},
                "encoder": {"name": "resnet18"},
                "method": {
                    "name": "fedsimclr",
                    "rounds": 2,
                    "epochs": 1,
                    "hidden": width,
                    "projections": 128,
                },
                "training": {"batch_size": IMAGES, "optimizer": "sgd", "keep_optimizer": False},
            }
        )
    )


def wait_for(run: Path) -> dict[str, float]:
    """Wait until the run is finished and return its last row."""
    until = time.monotonic() + TIMEOUT
    while not (run / "scores.json").exists():
        if time.monotonic() > until:
            raise SystemExit("The run did not finish in time.")
        time.sleep(0.5)
    row: dict[str, float] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[45, 400])
    parser.add_argument("--proxy", action="store_true", help="through nginx")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
