"""Estimates what a table costs without loading data: samples, parameters, operations and hours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedmcc.config import Config
from fedmcc.methods.base import Stage
from fedmcc.methods.inputs import Sight
from fedmcc.networks.momentum import Network
from fedmcc.reproduction.captions import count_images, dataset_facts
from fedmcc.reproduction.cells import Cell, Request
from fedmcc.runs.build import bare_network
from fedmcc.runs.resolve import stages, without_first_weights
from fedmcc.terminal.output import out
from fedmcc.training.loop import trainable

GPU_FLOPS = 10e12  # assumed operations per second of a data-centre GPU in single-precision training
CORE_FLOPS = 20e9  # assumed operations per second of a CPU core
COUNTED_BATCH = 4  # images of the training step whose operations are counted


@dataclass(frozen=True)
class Cost:
    """The cost of training one cell."""

    images: int  # of the data set
    samples: int  # images that the optimiser processes, over all clients, rounds and epochs
    parameters: int  # of the network, including the target branch
    operations: float

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU."""
        return self.operations / GPU_FLOPS / 3600

    @property
    def core_hours(self) -> float:
        """Hours of one CPU core."""
        return self.operations / CORE_FLOPS / 3600


class Estimator:
    """Estimates costs; cells of equal stages, encoder and image size share one counted step."""

    def __init__(self) -> None:
        self._counted: dict[tuple[object, ...], list[float]] = {}

    def cost(self, config: Config) -> Cost | None:
        """The cost of a cell, or None if the size of its data set is only known after loading it."""
        dataset, images = dataset_facts(config), count_images(config)
        if dataset is None or images is None:
            return None
        channels = int(dataset["channels"])
        with torch.device("meta"):  # tensors have shapes and no values
            net = bare_network(_complete(config, int(dataset["classes"])), channels)
        per_image = self._count(net, config, channels)
        share = _participating_share(config)
        samples = [share * count * stage.rounds * stage.epochs for stage, count in _passes(config)]
        operations = sum(count * each for count, each in zip(samples, per_image, strict=True))
        parameters = sum(parameter.numel() for parameter in net.parameters())
        return Cost(images, round(sum(samples)), parameters, operations)

    def _count(self, net: Network, config: Config, channels: int) -> list[float]:
        """Operations per image of each stage; the number of clusters hardly changes them and is ignored."""
        counted = [stage for stage, _ in _passes(config)]
        kinds = tuple((type(stage), stage.sees) for stage in counted)
        key = (*kinds, config.encoder, config.views.size, channels)
        if key not in self._counted:
            shape = (channels, config.views.size or 0, config.views.size or 0)
            self._counted[key] = [operations(net, stage, shape) for stage in counted]
        return self._counted[key]


def operations(net: Network, stage: Stage, shape: tuple[int, int, int]) -> float:
    """Floating-point operations per image of one training step, counted over all branches."""
    parameters = trainable(net, stage)
    if not parameters or not stage.epochs:
        return 0.0
    notes = stage.first_notes(net, COUNTED_BATCH)
    net.notes = {name: value.to("meta") for name, value in notes.items()}
    with FlopCounterMode(display=False) as counter:
        stage.loss(stage.represent(net, *_seen(stage, shape))).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / COUNTED_BATCH


def _passes(config: Config) -> list[tuple[Stage, int]]:
    """The stages and the images of an epoch of each; a stage for images without a label follows its stage."""
    every, labelled = (count_images(config, only) or 0 for only in (False, True))
    passes: list[tuple[Stage, int]] = []
    for stage in stages(config):
        second = stage.on_unlabelled
        passes.append((stage, labelled if stage.labelled_only or second else every))
        if second is not None:
            passes.append((second, every - labelled))
    return passes


def _seen(stage: Stage, shape: tuple[int, int, int]) -> list[Tensor]:
    """What the stage sees of a batch: tensors that have shapes and no values."""
    images = torch.empty(COUNTED_BATCH, *shape, device="meta")
    rows = torch.empty(COUNTED_BATCH, dtype=torch.int64, device="meta")
    partner_rows = rows[:, None].expand(-1, max(1, stage.sees.count(Sight.PARTNER)))
    numbers = {Sight.ROW: rows, Sight.PARTNER_ROW: partner_rows}
    return [numbers.get(sight, images) for sight in stage.sees]


def print_cost(request: Request, cells: Sequence[Cell]) -> None:
    """Print the cells and their cost."""
    estimator = Estimator()
    first = [cell for cell in cells if cell.seed == 0]
    costs = [estimator.cost(cell.config) for cell in first]
    table = Table("cell", title=f"{request.table.title}, scale {request.scale}")
    for name in ("images", "samples", "weights", "FLOPs", "GPU hours", "core hours"):
        table.add_column(name, justify="right")
    for cell, cost in zip(first, costs, strict=True):
        table.add_row(f"{cell.row} {cell.column}", *_texts(cost))
    out.print(table)
    known = [cost for cost in costs if cost is not None]
    hours = [
        request.seeds * sum(getattr(cost, name) for cost in known) for name in ("gpu_hours", "core_hours")
    ]
    done = sum(cell.done for cell in cells)
    out.print(f"{len(cells)} cells in {request.out}, {done} of them done.", highlight=False)
    out.print(
        f"Training all cells takes {_hours(hours[0])} hours of a GPU at an assumed {GPU_FLOPS / 1e12:.0f} "
        f"TFLOP/s, or {_hours(hours[1])} hours of a CPU core at {CORE_FLOPS / 1e9:.0f} GFLOP/s. "
        "Operations are counted in one training step; views and scoring are not included.",
        highlight=False,
    )


def _texts(cost: Cost | None) -> tuple[str, ...]:
    if cost is None:
        return ("not known", *("" for _ in range(5)))
    counts = (_short(cost.images), _short(cost.samples), _short(cost.parameters), f"{cost.operations:.1e}")
    return (*counts, _hours(cost.gpu_hours), _hours(cost.core_hours))


def _short(number: int) -> str:
    """Four digits and a unit: a terminal has no room for more."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:,.4g} {unit}"
    return str(number)


def _participating_share(config: Config) -> float:
    """Fraction of the images that belong to clients which take part in a round."""
    clients = config.partition.clients
    if config.federation.only is not None:
        return 1 / clients
    return config.federation.size(clients) / clients


def _complete(config: Config, classes: int) -> Config:
    """The configuration with all options that building a network needs."""
    general = replace(config.general, clusters=config.general.clusters or classes)
    return without_first_weights(replace(config, general=general))


def _hours(hours: float) -> str:
    """One decimal, or two significant digits below one hour."""
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
