"""Peak memory and time of a step against the batch size: plain, in chunks, and with gradient checkpointing.

python benchmarks/memory.py [--batches 64 128 ... 4096] [--chunk 64] [--threads 1] [--json FILE] [--plot FILE]

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
ENCODER_BATCHES = {"convnet": (64, 128, 256, 512, 1024, 2048, 4096), "resnet18": (64, 128, 512, 4096)}
TOO_LONG = ("resnet18", "checkpointed", 4096)  # minutes, and nothing new: memory grows in proportion
Rows = dict[int, dict[str, float]]
Figures = dict[str, dict[str, Rows]]
CPU = torch.device("cpu")


def main() -> None:
    """Measure each combination in a process of its own and print a table for each encoder."""
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(json.dumps(measure(*options.measure[:2], int(options.measure[2]), options.chunk)))
        return
    figures: Figures = {}
    for encoder in options.encoders:
        batches = options.batches or ENCODER_BATCHES[encoder]
        figures[encoder] = {
            mode: {n: fresh(encoder, mode, n, options) for n in batches if (encoder, mode, n) != TOO_LONG}
            for mode in MODES
        }
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
    parser.add_argument("--threads", type=int, default=1)
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
    for n in [min(batch, 64)] + [batch] * (1 if batch > 256 else 3):  # the first warms up
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


def show(encoder: str, rows: dict[str, Rows]) -> None:
    """A table of one encoder."""
    print(f"\n| {encoder}, batch | " + " | ".join(f"{mode}, MB | ms per image" for mode in MODES) + " |")
    print("|---" * (1 + 2 * len(MODES)) + "|")
    for n in rows["plain"]:
        found = [rows[mode].get(n) for mode in MODES]
        cells = [f"{x['megabytes']:.0f} | {x['ms_per_image']:.2f}" if x else "– | –" for x in found]
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


def drawing(figures: Figures) -> str:
    """Peaks against batch sizes, both on logarithmic scales, as SVG."""
    colours = dict(zip(MODES, ("#b03a2e", "#1f618d", "#7d6608"), strict=True))
    parts = [
        text(60 + 110 * i, 345, f'<tspan fill="{colour}">{mode}</tspan>')
        for i, (mode, colour) in enumerate(colours.items())
    ]
    for left, (encoder, rows) in zip((60, 400), figures.items(), strict=False):
        parts.append(text(left, 20, f"{encoder}: peak in MB against batch size"))
        parts += [text(left + 45 * i - 10, 320, str(64 << i)) for i in range(7)]
        parts += [text(left - 45, 304 - 22 * i, str(1 << i)) for i in range(4, 13, 2)]
        parts += [curve(left, rows[mode], colour) for mode, colour in colours.items()]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 360" font-family="sans-serif" '
    return "\n".join([head + 'font-size="12">', *parts, "</svg>\n"])


def curve(left: int, rows: Rows, colour: str) -> str:
    """The peaks of one mode."""
    places = [(left + 45 * np.log2(n / 64), 300 - 22 * np.log2(row["megabytes"])) for n, row in rows.items()]
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
    dots = [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colour}"/>' for x, y in places]
    return "\n".join([f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots])


def text(x: int, y: int, content: str) -> str:
    """Words at a place of the drawing."""
    return f'<text x="{x}" y="{y}">{content}</text>'


if __name__ == "__main__":
    main()
