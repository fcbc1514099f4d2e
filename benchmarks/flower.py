"""What Flower's transport costs: a round of one site with ResNet-18, and with a network of 400 MB.

python benchmarks/flower.py [--megabytes 45 400] [--json FILE]
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import tomli_w

from fedmcc import config
from fedmcc.deployment import flower, processes
from fedmcc.flower_app import write_bundle

PATIENCE = 1800.0  # seconds
FEATURES = 512  # of ResNet-18, which has 45 MB
BARE = 45  # megabytes of ResNet-18 with a small projector


def main() -> None:
    """Two rounds for each size; the second, which starts warm, is printed."""
    options = read_options()
    rows = []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            row = measure(Path(folder), stack, megabytes)
        rows.append(row)
        print("  ".join(f"{key} {value:.1f}" for key, value in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def measure(home: Path, stack: ExitStack, megabytes: int) -> dict[str, float]:
    """Bytes and seconds of a round in which one site trains on eight images."""
    write_bundle(home / "bundle")
    port, _ = stack.enter_context(flower.trial(home))
    own = f'client="a" state-dir="{home / "a"}"'
    where = ("--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1")
    words = (*where, "--port", str(processes.free_port()), "--node-config", own)
    site = (flower.program("flower-supernode"), *words)
    stack.enter_context(processes.running(site, home, home / "site.log"))
    told = {"recipe": recipe(megabytes), "run": str(home / "run"), "sites": "a", "wait": PATIENCE}
    (home / "run.toml").write_text(tomli_w.dumps(told | {"round-timeout": PATIENCE}))
    flower.CommandLine(home).run(home / "bundle", home / "run.toml")
    row = wait_for(home / "run")
    sent = (row["bytes_down"] + row["bytes_up"]) / 1e6
    return {
        "megabytes_down": row["bytes_down"] / 1e6,
        "megabytes_up": row["bytes_up"] / 1e6,
        "seconds": row["seconds"],
        "transport": row["transport"],
        "training": row["training"],
        "megabytes_per_second": sent / row["transport"],
    }


def recipe(megabytes: int) -> str:
    """ResNet-18 with a projector so wide that the network has the size."""
    width = max(FEATURES, int((megabytes - BARE) * 1e6 / 4 / (FEATURES + 128)))
    return config.dump(
        config.parse(
            {
                "clusters": 2,
                "threads": 1,
                "device": "cpu",
                "data": {"name": "synthetic", "limit": 8},
                "encoder": {"name": "resnet18"},
                "method": {
                    "name": "fedsimclr",
                    "rounds": 2,
                    "epochs": 1,
                    "hidden": width,
                    "projections": 128,
                },
                "training": {"batch_size": 8, "optimizer": "sgd", "keep_optimizer": False},
            }
        )
    )


def wait_for(run: Path) -> dict[str, float]:
    """The last row of a finished run."""
    until = time.monotonic() + PATIENCE
    while not (run / "scores.json").exists():
        if time.monotonic() > until:
            raise SystemExit("The run did not finish in time.")
        time.sleep(0.5)
    row: dict[str, float] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[45, 400])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
