"""Peak memory and time of a step against the batch size: plain, in chunks, and with gradient checkpointing.

python benchmarks/memory.py [--quick] [--repeats 5] [--chunk 64] [--threads 1] [--json FILE] [--plot FILE]

The representation stage of fedmcc with group normalisation on images of 3x32x32. Each figure is from a fresh
process; memory is the peak above what the process had, images and network included, before its first step.
The two that matter, growth with the batch and time against plain, are medians of several processes in turns.
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
from fedmcc.training.loop import Training, lazy_pairs, train, trainable
from fedmcc.training.memory import bytes_in_use
from fedmcc.training.torch_setup import set_up_torch
from fedmcc.views import preset
from measuring import begin_peak, fresh, high_water, parser, ratios, show, spread, write_json

MODES = ("plain", "chunked", "checkpointed")
SWEPT = {
    "convnet": (64, 256, 1024, 4096),
    "resnet18": (64, 256),
}  # once; beyond it memory grows in proportion
GROWTH = {
    "convnet": (128, 4096),
    "resnet18": (128, 4096),
}  # batches of which the memory in chunks is compared
TIMED = {"convnet": 512, "resnet18": 128}  # batch of which the time is compared
FEWER = {"resnet18": 3}  # repeats at most: a batch of 4096 takes most of a minute
Rows = dict[int, dict[str, float]]
Figures = dict[str, Any]
CPU = torch.device("cpu")


def main() -> None:
    """Measure each combination in a process of its own and print a table for each encoder."""
    options = read_options()
    set_up_torch(options.threads)
    if options.measure:
        print(json.dumps(measure(*options.measure[:2], int(options.measure[2]), options.chunk)))
        return
    figures: Figures = {"growth": {}, "time": {}, "sweep": {}}
    for encoder in options.encoders:
        repeats = min(options.repeats, FEWER.get(encoder, options.repeats))
        figures["growth"][encoder] = growth(encoder, repeats, options)
        figures["time"][encoder] = against_plain(encoder, repeats, options)
    for encoder in options.encoders:
        figures["sweep"][encoder] = {
            mode: {n: alone(encoder, mode, n, options) for n in SWEPT[encoder]} for mode in MODES
        }
        show_sweep(encoder, figures["sweep"][encoder])
    show_losses()
    write_json(options.json, figures)
    if options.plot:
        options.plot.write_text(drawing(figures["sweep"]))


def read_options() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, repeats=5, quick=2)
    made.add_argument("--encoders", nargs="+", default=list(SWEPT), choices=list(SWEPT))
    made.add_argument("--chunk", type=int, default=64)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--plot", type=Path, help="draw the peaks into this SVG file")
    made.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    return made.parse_args()


def growth(encoder: str, repeats: int, options: argparse.Namespace) -> dict[int, list[float]]:
    """Megabytes of chunked steps at a small and a large batch, in turns."""
    small, large = GROWTH[encoder]
    found: dict[int, list[float]] = {small: [], large: []}
    for _ in range(repeats):
        for n in found:
            found[n].append(alone(encoder, "chunked", n, options)["megabytes"])
    both = [spread(found[n]).text(0) for n in (small, large)]
    headings = (f"{encoder} in chunks of {options.chunk}, MB", f"batch {small}", f"batch {large}", "growth")
    show(headings, [[f"median of {repeats}", *both, ratios(found[large], found[small]).text()]])
    return found


def against_plain(encoder: str, repeats: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds per image of a plain and a chunked step, in turns."""
    batch, found = TIMED[encoder], {"plain": [], "chunked": []}
    for _ in range(repeats):
        for mode, taken in found.items():
            taken.append(alone(encoder, mode, batch, options)["ms_per_image"])
    both = [spread(found[mode]).text() for mode in found]
    headings = (f"{encoder}, batch {batch}, ms per image", *found, "ratio")
    show(headings, [[f"median of {repeats}", *both, ratios(found["chunked"], found["plain"]).text()]])
    return found


def alone(encoder: str, mode: str, batch: int, options: argparse.Namespace) -> dict[str, float]:
    """The figures of one combination in a process of its own."""
    words = ("--measure", encoder, mode, batch, "--chunk", options.chunk, "--threads", options.threads)
    return fresh(__file__, *words)


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
    idle, draw, views = bytes_in_use(CPU), torch.Generator().manual_seed(0), preset("photo")
    begin_peak()
    seconds: list[float] = []
    for n in [min(batch, 64)] + [batch] * (1 if batch > 256 else 3):  # the first warms up
        start = time.perf_counter()
        list(train(net, stage, lazy_pairs(images[:n], views, n, draw, CPU), optimizer, training.chunks(n)))
        seconds.append(time.perf_counter() - start)
    return {"megabytes": (high_water() - idle) / 2**20, "ms_per_image": 1e3 * min(seconds[1:]) / batch}


def keep_little(encoder: torch.nn.Module) -> None:
    """Gradient checkpointing: of each stage of the encoder, only what goes in is kept."""
    stages = getattr(encoder, "stages", None) or [encoder.get_submodule(f"layer{i}") for i in range(1, 5)]
    for stage in stages:
        stage.forward = functools.partial(checkpoint, stage.forward, use_reentrant=False)


def show_sweep(encoder: str, rows: dict[str, Rows]) -> None:
    """A table of one encoder."""
    headings = [f"{encoder}, batch", *(words for mode in MODES for words in (f"{mode}, MB", "ms per image"))]
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
    """Milliseconds of the contrastive loss of 128 numbers per image and its gradient, at their fastest."""
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
    """Seconds of the fastest of five."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        torch.autograd.grad(loss(), inputs)
        found.append(time.perf_counter() - start)
    return min(found)


def drawing(figures: dict[str, dict[str, Rows]]) -> str:
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
