"""Views and epochs of this package against those of other packages, in alternating CPU seconds of one thread.

python benchmarks/peers.py [--quick] [--repeats 5] [--python .venv-peers/bin/python] [--json FILE]

The peers need torchvision, whose usual builds cannot be imported beside a torch without CUDA, so they run in
an environment of their own, in a process that this one starts and takes turns with:

    python3.11 -m venv .venv-peers
    .venv-peers/bin/pip install torch==2.13.0 albumentations kornia pillow  # the CPU build of torch
    .venv-peers/bin/pip install --no-deps torchvision==0.28.0 lightly
    .venv-peers/bin/pip install pytorch-lightning hydra-core

Epochs of CC and of FedBYOL are re-implementations of the published procedures: torchvision's transforms on
Pillow images in a DataLoader, a plain ResNet, two forward passes, and their optimiser. They are not the
authors' programs; EasyFL's package does not include its self-supervised clients. A peer that cannot run here
is listed with the reason.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmcc.config import parse
from fedmcc.runs.build import build_network
from fedmcc.training.batches import view_pairs
from fedmcc.training.loop import Training, train, trainable
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import preset
from measuring import parser, ratios, show, spread, write_json

HERE = Path(__file__).resolve().parent
VIEW_PEERS = ("albumentations", "kornia", "torchvision v2", "torchvision, Pillow")
VIEW_CASES = ({"batch": 256, "size": 32}, {"batch": 64, "size": 96}, {"batch": 32, "size": 224})
EPOCH_CASES = {  # peer, our method, encoder, images, batch
    "CC, convnet": ("CC", "cc", "convnet", 1024, 128),
    "CC, ResNet-18": ("CC", "cc", "resnet18", 256, 128),
    "FedBYOL, ResNet-18": ("FedBYOL", "fedbyol", "resnet18", 256, 128),
    "SimCLR of lightly, ResNet-18": ("lightly", "fedsimclr", "resnet18", 256, 128),
}
SIZE = 32  # of images in epochs
Times = dict[str, list[float]]


class Peers:
    """The process of the peers."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(HERE / "peers_worker.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process: Any = subprocess.Popen(command, text=True, **pipes)

    def seconds(self, kind: str, peer: str, case: dict[str, Any]) -> float | str:
        """CPU seconds of a work, or why it cannot run."""
        self.process.stdin.write(json.dumps([kind, peer, case]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            return "the process of the peers ended"
        reply = json.loads(line)
        return reply.get("seconds", reply.get("error"))


def main() -> None:
    """Measure views and epochs and print a table of each."""
    arguments = parser(__doc__, repeats=5, quick=2)
    arguments.add_argument("--python", type=Path, default=HERE.parent / ".venv-peers" / "bin" / "python")
    options = arguments.parse_args()
    if not options.python.exists():
        sys.exit(f"There is no {options.python}: see the first lines of {__file__} for how to install it.")
    set_up_torch(1)
    peers = Peers(options.python)
    print("Milliseconds of CPU time per image, one thread, median (quartiles); ratio: peer / fedmcc")
    figures = {"views": views(peers, options.repeats), "epochs": epochs(peers, options.repeats)}
    peers.process.stdin.close()
    peers.process.wait()
    write_json(options.json, figures)


def views(peers: Peers, repeats: int) -> dict[str, Any]:
    """The views of the preset `photo`, at each size."""
    figures = {}
    for case in VIEW_CASES:
        taken = alternate(
            peers, repeats, "views", {name: (name, case) for name in VIEW_PEERS}, our_views(**case)
        )
        title = f"photo, 3×{case['size']}×{case['size']}"
        figures[title] = report(title, taken, case["batch"])
    return figures


def epochs(peers: Peers, repeats: int) -> dict[str, Any]:
    """An epoch of training, for each peer."""
    figures = {}
    for title, (peer, method, encoder, images, batch) in EPOCH_CASES.items():
        case = {"name": encoder, "images": images, "batch": batch, "size": SIZE}
        ours = our_epoch(method, encoder, images, batch)
        taken = alternate(peers, repeats, "epoch", {title: (peer, case)}, ours)
        figures[title] = report(f"epoch of {images} images, {SIZE} px", taken, images)
    return figures


def alternate(
    peers: Peers, repeats: int, kind: str, works: dict[str, tuple[str, Any]], ours: Callable[[], object]
) -> dict[str, Any]:
    """CPU seconds of our work and of the peers', in turns; the first turn warms up."""
    taken: dict[str, Any] = {"fedmcc": [], **{name: [] for name in works}}
    for turn in range(repeats + 1):
        start = time.process_time()
        ours()
        found: dict[str, Any] = {"fedmcc": time.process_time() - start}
        for name, (peer, case) in works.items():
            if isinstance(taken[name], list):
                found[name] = peers.seconds(kind, peer, case)
        for name, seconds in found.items():
            if isinstance(seconds, str):
                taken[name] = seconds
            elif turn:
                taken[name].append(seconds)
    return taken


def report(title: str, taken: dict[str, Any], images: int) -> dict[str, Any]:
    """Print a row for each and return the figures."""
    rows = []
    for name, seconds in taken.items():
        if isinstance(seconds, str):
            rows.append([name, seconds, ""])
            continue
        rows.append([name, spread(seconds).text(3, 1000 / images), ratios(seconds, taken["fedmcc"]).text(2)])
    show((title, "ms per image", "ratio"), rows)
    return taken


def our_views(batch: int, size: int) -> Callable[[], object]:
    """The preset `photo` on a batch."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, generator=draw)
    return lambda: preset("photo")(images, draw)


@cache
def our_epoch(method: str, encoder: str, images: int, batch: int) -> Callable[[], object]:
    """An epoch of a client."""
    options = {"name": encoder} | ({"width": 16} if encoder == "convnet" else {})
    table = {"clusters": 10, "method": {"name": method}, "encoder": options}
    config = parse({**table, "views": {"preset": "photo", "size": SIZE}})
    net, stage = build_network(config, 3), config.method.stages()[0]
    kind = "sgd" if method == "fedbyol" else "adam"
    optimizer = Training(optimizer=kind).build_optimizer(trainable(net, stage))
    shape = (images, 3, SIZE, SIZE)
    data = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")
    return lambda: list(train(net, stage, view_pairs(data, config.views, batch, draw, device), optimizer))


if __name__ == "__main__":
    main()
