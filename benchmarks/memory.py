"""Peak memory and time of a step by batch size: plain, in chunks, and with gradient checkpointing.

python benchmarks/memory.py [--quick] [--repeats 5] [--chunk 64] [--threads 1] [--json FILE] [--plot FILE]

The representation stage of fedmcc with group normalisation on images of 3x32x32. Each figure is from a fresh
process; memory is the peak above the memory before the first step, which includes images and network. Growth
with the batch and time relative to plain are medians of several alternating processes.
"""

import argparse
import functools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from fedmcc.losses import contrast
from fedmcc.methods import METHODS
from fedmcc.networks import ENCODERS
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.loss_gradients import ContrastOptions, contrast_by_autograd, contrast_by_closed_form
from fedmcc.training.batches import lazy_pairs
from fedmcc.training.loop import Training, train, trainable
from fedmcc.training.memory import bytes_in_use
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import preset
from measuring import parser, peak_bytes, ratios, reset_peak, run_fresh, show, spread, write_json

MODES = ("plain", "chunked", "checkpointed")
SWEPT = {
    "convnet": (64, 256, 1024, 4096),
    "resnet18": (64, 256),
}  # measured once; with larger batches memory grows in proportion
GROWTH = {
    "convnet": (128, 4096),
    "resnet18": (128, 4096),
}  # batches whose memory in chunks is compared
TIMED = {"convnet": 512, "resnet18": 128}  # batch whose time is compared
MAX_REPEATS = {"resnet18": 3}  # a batch of 4096 takes most of a minute
Rows = dict[int, dict[str, float]]
Figures = dict[str, Any]
CPU = torch.device("cpu")


def main() -> None:
    """Measure each combination in a fresh process and print a table for each encoder."""
    options = read_options()
    set_up_torch(options.threads)
    if options.measure:
        print(json.dumps(measure(*options.measure[:2], int(options.measure[2]), options.chunk)))
        return
    figures: Figures = {"growth": {}, "time": {}, "sweep": {}}
    for encoder in options.encoders:
        repeats = min(options.repeats, MAX_REPEATS.get(encoder, options.repeats))
        figures["growth"][encoder] = growth(encoder, repeats, options)
        figures["time"][encoder] = against_plain(encoder, repeats, options)
    for encoder in options.encoders:
        figures["sweep"][encoder] = {
            mode: {n: measure_fresh(encoder, mode, n, options) for n in SWEPT[encoder]} for mode in MODES
        }
        show_sweep(encoder, figures["sweep"][encoder])
    show_losses()
    write_json(options.json, figures)
    if options.plot:
        options.plot.write_text(drawing(figures["sweep"]))


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    arguments = parser(__doc__, repeats=5, quick=2)
    arguments.add_argument("--encoders", nargs="+", default=list(SWEPT), choices=list(SWEPT))
    arguments.add_argument("--chunk", type=int, default=64)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--plot", type=Path, help="draw the peaks into this SVG file")
    arguments.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    return arguments.parse_args()


def growth(encoder: str, repeats: int, options: argparse.Namespace) -> dict[int, list[float]]:
    """Megabytes of chunked steps with a small and a large batch, alternating."""
    small, large = GROWTH[encoder]
    megabytes: dict[int, list[float]] = {small: [], large: []}
    for _ in range(repeats):
        for n in megabytes:
            megabytes[n].append(measure_fresh(encoder, "chunked", n, options)["megabytes"])
    both = [spread(megabytes[n]).text(0) for n in (small, large)]
    headings = (f"{encoder} in chunks of {options.chunk}, MB", f"batch {small}", f"batch {large}", "growth")
    show(headings, [[f"median of {repeats}", *both, ratios(megabytes[large], megabytes[small]).text()]])
    return megabytes


def against_plain(encoder: str, repeats: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds per image of a plain and a chunked step, alternating."""
    batch, times = TIMED[encoder], {"plain": [], "chunked": []}
    for _ in range(repeats):
        for mode, taken in times.items():
            taken.append(measure_fresh(encoder, mode, batch, options)["ms_per_image"])
    both = [spread(times[mode]).text() for mode in times]
    headings = (f"{encoder}, batch {batch}, ms per image", *times, "ratio")
    show(headings, [[f"median of {repeats}", *both, ratios(times["chunked"], times["plain"]).text()]])
    return times


def measure_fresh(encoder: str, mode: str, batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure one combination in a fresh process."""
    argv = ("--measure", encoder, mode, batch, "--chunk", options.chunk, "--threads", options.threads)
    return run_fresh(__file__, *argv)


def measure(encoder: str, mode: str, batch: int, chunk: int) -> dict[str, float]:
    """Megabytes above the idle process, and milliseconds per image of the fastest step."""
    method = METHODS["fedmcc"]()
    built = ENCODERS[encoder](norm="group").build(3, 32)
    net = method.build(built, built.features, 10).to(memory_format=torch.channels_last)
    initialise(net, torch.Generator().manual_seed(0))
    if mode == "checkpointed":
        checkpoint_stages(net.online.encoder)
    images = np.random.default_rng(0).integers(0, 256, (max(batch, 64), 3, 32, 32), dtype=np.uint8)
    stage, training = method.stages()[0], Training(chunk=chunk if mode == "chunked" else None)
    optimizer = training.build_optimizer(trainable(net, stage))
    idle, draw, views = bytes_in_use(CPU), torch.Generator().manual_seed(0), preset("photo")
    reset_peak()
    seconds: list[float] = []
    for n in [min(batch, 64)] + [batch] * (1 if batch > 256 else 3):  # the first step warms up
        start = time.perf_counter()
        list(train(net, stage, lazy_pairs(images[:n], views, n, draw, CPU), optimizer, training.chunks(n)))
        seconds.append(time.perf_counter() - start)
    return {"megabytes": (peak_bytes() - idle) / 2**20, "ms_per_image": 1e3 * min(seconds[1:]) / batch}


def checkpoint_stages(encoder: torch.nn.Module) -> None:
    """Apply gradient checkpointing: only the input of each stage of the encoder is stored."""
    stages = getattr(encoder, "stages", None) or [encoder.get_submodule(f"layer{i}") for i in range(1, 5)]
    for stage in stages:
        stage.forward = functools.partial(checkpoint, stage.forward, use_reentrant=False)


def show_sweep(encoder: str, rows: dict[str, Rows]) -> None:
    """Print the table of one encoder."""
    headings = [
        f"{encoder}, batch",
        *(heading for mode in MODES for heading in (f"{mode}, MB", "ms per image")),
    ]
    cells = [
        [
            str(n),
            *(
                f"{rows[mode][n][key]:.{digits}f}"
                for mode in MODES
                for key, digits in (("megabytes", 0), ("ms_per_image", 2))
            ),
        ]
        for n in rows["plain"]
    ]
    show(headings, cells)


def show_losses() -> None:
    """Print the fastest time of the contrastive loss of 128 numbers per image and its gradient."""
    rows = []
    for n in (256, 1024, 4096):
        u, v = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(0)).requires_grad_()
        losses = (
            functools.partial(contrast, u, v, 0.5),
            functools.partial(contrast_by_autograd, u, v, ContrastOptions(0.5)),
            functools.partial(contrast_by_closed_form, u, v, ContrastOptions(0.5)),
        )
        rows.append([str(n), *(f"{1e3 * quickest(loss, (u, v)):.1f}" for loss in losses)])
    headings = (
        "loss and gradient, batch",
        "dense autograd, ms",
        "autograd in blocks",
        "closed form in blocks",
    )
    show(headings, rows)


def quickest(loss: functools.partial[torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> float:
    """Seconds of the fastest of five calls."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        torch.autograd.grad(loss(), inputs)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def drawing(figures: dict[str, dict[str, Rows]]) -> str:
    """Peak memory by batch size on logarithmic scales, as SVG."""
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
    """The curve of one mode."""
    places = [(left + 45 * np.log2(n / 64), 300 - 22 * np.log2(row["megabytes"])) for n, row in rows.items()]
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
    dots = [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colour}"/>' for x, y in places]
    return "\n".join([f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots])


def text(x: int, y: int, content: str) -> str:
    """An SVG text element."""
    return f'<text x="{x}" y="{y}">{content}</text>'


if __name__ == "__main__":
    main()
