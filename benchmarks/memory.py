"""Peak memory and time of a step against the batch size: plain, in chunks, and with gradient checkpointing.

python benchmarks/memory.py [--batches 64 128 ... 4096] [--chunk 64] [--threads 2] [--json FILE] [--plot FILE]

The representation stage of fedmcc with group normalisation on images of 3x32x32. Each figure is from a fresh
process; memory is the peak above what the process had, images and network included, before its first step.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from fedmcc.gradients import Form, contrast_by_autograd, contrast_by_closed_form
from fedmcc.losses import contrast
from fedmcc.memory import in_use
from fedmcc.methods import METHODS
from fedmcc.networks import ENCODERS
from fedmcc.networks.initialise import initialise
from fedmcc.training import Training, drawn_pairs, train, trainable
from fedmcc.views import preset

MODES = ("plain", "chunked", "checkpointed")
ENCODER_BATCHES = {"convnet": (64, 128, 512, 1024, 4096), "resnet18": (64, 128, 1024, 4096)}
CPU = torch.device("cpu")


def main() -> None:
    """Measure each combination in a process of its own and print a table for each encoder."""
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(*options.measure[:2], int(options.measure[2]), options.chunk)))
        return
    figures: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for encoder in options.encoders:
        batches = options.batches or ENCODER_BATCHES[encoder]
        figures[encoder] = {mode: {n: fresh(encoder, mode, n, options) for n in batches} for mode in MODES}
        show(encoder, figures[encoder])
    show_losses()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.plot:
        options.plot.write_text(drawing(figures))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoders", nargs="+", default=list(ENCODER_BATCHES))
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--plot", type=Path, help="draw the peaks into this SVG file")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def fresh(encoder: str, mode: str, batch: int, options: argparse.Namespace) -> dict[str, float]:
    """The figures of one combination in a process of its own."""
    words = [sys.executable, __file__, "--measure", encoder, mode, str(batch)]
    words += ["--chunk", str(options.chunk), "--threads", str(options.threads)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def measure(encoder: str, mode: str, batch: int, chunk: int) -> dict[str, float]:
    """Megabytes above the idle process, and milliseconds per image of the fastest step."""
    method = METHODS["fedmcc"]()
    built = ENCODERS[encoder](norm="group").build(3, 32)
    net = method.build(built, built.features, 10).to(memory_format=torch.channels_last)
    initialise(net, torch.Generator().manual_seed(0))
    if mode == "checkpointed":
        keep_little(net.online.encoder)
    images = np.random.default_rng(0).integers(0, 256, (max(batch, 64), 3, 32, 32), dtype=np.uint8)
    stage, training = method.stages()[0], Training(chunk=chunk if mode == "chunked" else None)
    optimizer = training.build_optimizer(trainable(net, stage))
    idle, draw, views = in_use(CPU), torch.Generator().manual_seed(0), preset("photo")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    seconds: list[float] = []
    for n in [min(batch, 64)] + [batch] * (1 if batch > 1024 else 3):  # the first warms up
        start = time.perf_counter()
        list(train(net, stage, drawn_pairs(images[:n], views, n, draw, CPU), optimizer, training.chunks(n)))
        seconds.append(time.perf_counter() - start)
    return {"megabytes": (high_water() - idle) / 2**20, "ms_per_image": 1e3 * min(seconds[1:]) / batch}


def high_water() -> int:
    """The peak of this process, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def keep_little(encoder: torch.nn.Module) -> None:
    """Gradient checkpointing: of each stage of the encoder, only what goes in is kept."""
    stages = getattr(encoder, "stages", None) or [encoder.get_submodule(f"layer{i}") for i in range(1, 5)]
    for stage in stages:
        stage.forward = functools.partial(checkpoint, stage.forward, use_reentrant=False)


def show(encoder: str, rows: dict[str, dict[int, dict[str, float]]]) -> None:
    """A table of one encoder."""
    print(f"\n| {encoder}, batch | " + " | ".join(f"{mode}, MB | ms per image" for mode in MODES) + " |")
    print("|---" * (1 + 2 * len(MODES)) + "|")
    for n in rows["plain"]:
        cells = [f"{rows[m][n]['megabytes']:.0f} | {rows[m][n]['ms_per_image']:.2f}" for m in MODES]
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)


def show_losses() -> None:
    """Milliseconds of the contrastive loss of 128 numbers per image and its gradient, at their fastest."""
    print("\n| loss and gradient, batch | dense autograd, ms | autograd in blocks | closed form in blocks |")
    print("|---|---|---|---|")
    for n in (256, 1024, 4096):
        u, v = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(0)).requires_grad_()
        losses = (
            functools.partial(contrast, u, v, 0.5),
            functools.partial(contrast_by_autograd, u, v, Form(0.5)),
            functools.partial(contrast_by_closed_form, u, v, Form(0.5)),
        )
        print(f"| {n} | " + " | ".join(f"{1e3 * quickest(loss, (u, v)):.1f}" for loss in losses) + " |")


def quickest(loss: functools.partial[torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> float:
    """Seconds of the fastest of five."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        torch.autograd.grad(loss(), inputs)
        found.append(time.perf_counter() - start)
    return min(found)


def drawing(figures: dict[str, dict[str, dict[int, dict[str, float]]]]) -> str:
    """Peaks against batch sizes, both by powers of two, as SVG."""
    colours = dict(zip(MODES, ("#b03a2e", "#1f618d", "#7d6608"), strict=True))
    parts = []
    for left, (encoder, rows) in zip((60, 400), figures.items(), strict=False):
        parts.append(f'<text x="{left}" y="20">{encoder}: peak MB against batch</text>')
        for mode, colour in colours.items():
            points = [
                (left + 45 * np.log2(n / 64), 300 - 22 * np.log2(row["megabytes"]))
                for n, row in rows[mode].items()
            ]
            line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
            for (x, y), (n, row) in zip(points, rows[mode].items(), strict=True):
                parts.append(
                    f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colour}"><title>{mode}, {n}: {row["megabytes"]:.0f} MB</title></circle>'
                )
        parts += [f'<text x="{left + 45 * i - 10}" y="320">{64 << i}</text>' for i in range(7)]
        parts += [f'<text x="{left - 45}" y="{304 - 22 * i}">{1 << i}</text>' for i in range(4, 13, 2)]
    parts += [
        f'<text x="{60 + 110 * i}" y="345" fill="{c}">{m}</text>' for i, (m, c) in enumerate(colours.items())
    ]
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 360" font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


if __name__ == "__main__":
    main()
