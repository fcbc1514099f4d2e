"""What a table would cost, without loading any data: images seen, parameters, operations, hours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from fedmcc.config import Config
from fedmcc.methods.base import Stage
from fedmcc.networks.momentum import Network
from fedmcc.reproduction.captions import described, images_of
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.runs.build import bare_network
from fedmcc.runs.resolve import stages, without_first_weights
from fedmcc.terminal.output import out
from fedmcc.training.loop import trainable

GPU = 10e12  # operations per second that a data-centre GPU is assumed to do in training at single precision
CORE = 20e9  # and a core of a CPU
BATCH = 4  # images of the step whose operations are counted


@dataclass(frozen=True)
class Cost:
    """What training one cell takes."""

    images: int  # of the data set
    seen: int  # by the optimiser, all clients and rounds together
    parameters: int  # of the network, target branch included
    operations: float

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU."""
        return self.operations / GPU / 3600

    @property
    def core_hours(self) -> float:
        """Hours of one core."""
        return self.operations / CORE / 3600


class Estimator:
    """Costs of cells; those of the same stages, encoder and size share the counted step."""

    def __init__(self) -> None:
        self._counted: dict[tuple[object, ...], list[float]] = {}

    def cost(self, config: Config) -> Cost | None:
        """The cost of a cell; None where its data set's size is not known before it is loaded."""
        known, images = described(config), images_of(config)
        if known is None or images is None:
            return None
        with torch.device("meta"):  # shapes are counted, nothing is computed
            net = bare_network(_complete(config, int(known["classes"])), int(known["channels"]))
        per_image = self._count(net, config, int(known["channels"]))
        seen = [_share(config) * images * stage.rounds * stage.epochs for stage in stages(config)]
        operations = sum(count * each for count, each in zip(seen, per_image, strict=True))
        parameters = sum(parameter.numel() for parameter in net.parameters())
        return Cost(images, round(sum(seen)), parameters, operations)

    def _count(self, net: Network, config: Config, channels: int) -> list[float]:
        """Operations per image of each stage; the number of clusters hardly matters."""
        kinds = tuple(type(stage) for stage in stages(config))
        key = (*kinds, config.encoder, config.views.size, channels)
        if key not in self._counted:
            shape = (channels, config.views.size or 0, config.views.size or 0)
            self._counted[key] = [operations(net, stage, shape) for stage in stages(config)]
        return self._counted[key]


def operations(net: Network, stage: Stage, shape: tuple[int, int, int]) -> float:
    """Floating-point operations per image of one step of a stage, counted: forward, backward and target."""
    parameters = trainable(net, stage)
    if not parameters or not stage.epochs:
        return 0.0
    pair = (torch.empty(BATCH, *shape, device="meta") for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        stage.loss(stage.represent(net, *pair)).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / BATCH


def show(request: Request, planned: Sequence[Cell]) -> None:
    """The plan on the screen."""
    estimator = Estimator()
    first = [cell for cell in planned if cell.seed == 0]
    costs = [estimator.cost(cell.config) for cell in first]
    table = Table("cell", title=f"{request.table.title}, scale {request.scale}")
    for name in ("images", "seen", "weights", "operations", "GPU hours", "core hours"):
        table.add_column(name, justify="right")
    for cell, cost in zip(first, costs, strict=True):
        table.add_row(f"{cell.row} {cell.column}", *_texts(cost))
    out.print(table)
    known = [cost for cost in costs if cost is not None]
    hours = [
        request.seeds * sum(getattr(cost, name) for cost in known) for name in ("gpu_hours", "core_hours")
    ]
    done = sum(cell.done for cell in planned)
    out.print(f"{len(planned)} cells in {request.out}, {done} of them done.", highlight=False)
    out.print(
        f"Training them all: {_hours(hours[0])} hours of a GPU at an assumed {GPU / 1e12:.0f} TFLOP/s, "
        f"or {_hours(hours[1])} hours of a core at {CORE / 1e9:.0f} GFLOP/s. "
        "Operations are counted in one step; making views and scoring come on top.",
        highlight=False,
    )


def _texts(cost: Cost | None) -> tuple[str, ...]:
    if cost is None:
        return ("not known", *("" for _ in range(5)))
    counts = (_short(cost.images), _short(cost.seen), _short(cost.parameters), f"{cost.operations:.1e}")
    return (*counts, _hours(cost.gpu_hours), _hours(cost.core_hours))


def _short(number: int) -> str:
    """Four digits and a unit, so that a terminal has room for all columns."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:,.4g} {unit}"
    return str(number)


def _share(config: Config) -> float:
    """Of the images, those of clients that take part in a round."""
    clients = config.partition.clients
    if config.federation.only is not None:
        return 1 / clients
    return config.federation.size(clients) / clients


def _complete(config: Config, classes: int) -> Config:
    """What a network can be built of."""
    general = replace(config.general, clusters=config.general.clusters or classes)
    return without_first_weights(replace(config, general=general))


def _hours(hours: float) -> str:
    """Whole tenths, or two digits of what is less than an hour."""
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
