"""What a method is: hyperparameters, a network, and stages of two functions and a few optional hooks.

Every hook has the default of plain federated averaging. Centralized training is a federation of one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedmcc.errors import InputError
from fedmcc.messages import Task, Update
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import State, copy_into, weighted_average

Parts = tuple[str, ...]  # names of submodules, such as "online.encoder"
Memory = dict[str, Tensor]  # what a client remembers of a stage besides its network


class Aggregate(NamedTuple):
    """The server's step: the new shared weights, and what every client gets with its next task."""

    weights: State
    extras: State


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a method. What travels is declared by names, not coded."""

    name: str
    rounds: int  # R
    epochs: int  # E, local epochs in a round; 0 where nothing is trained
    trained: Parts  # submodules the optimiser updates
    shared: Parts  # submodules averaged every round
    frozen: Parts = ()  # submodules the server hands out once, when a client meets the stage
    pace: float = 1.0  # multiple of training.learning_rate
    encoder: str = ""  # the frozen submodule that alone sees the views, if there is one
    views_per_image: int = 0  # whose features by that encoder are kept; 0: fresh views in every step
    on_features: bool = False  # `represent` is given pairs of those features in place of views
    precision: torch.dtype | None = None  # of the networks in a step; None: of their weights

    def outputs(self, net: Any, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        """What `represent` gives, computed in the stage's precision, as the loss wants it: in full."""
        if self.precision is None:
            return self.represent(net, a, b)
        with torch.autocast(a.device.type, self.precision):
            found: Any = self.represent(net, a, b)
        make = getattr(found, "_make", tuple)
        return make([output.float() for output in found])

    def represent(self, net: Any, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        """The outputs for two views of some images, a NamedTuple of a row per image.

        A row may depend on its own image alone (but for BatchNorm), so that any slice of a batch will do.
        What carries no gradient, such as a target's part, goes through `passes.without_gradient`.
        """
        raise NotImplementedError

    def loss(self, outputs: Any) -> Tensor:
        """The loss of a whole batch of outputs: the only place where images meet."""
        raise NotImplementedError

    def after_step(self, net: Any, outputs: Any) -> None:
        """What follows the optimiser's step, such as the moving average of a target network."""

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """What a client does with the global model: adopt it."""
        copy_into(net, task.weights)

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Small tensors that a client adds to its reply: none. `batches` are its images, not augmented."""
        return {}

    def extras_error(self, update: Update) -> str:
        """What is wrong with the extras of a reply whose weights are sound, in a sentence, or nothing."""
        return f"It adds {min(update.extras)!r:.80}, which nobody asked for." if update.extras else ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The server's step from `model`, the global network: the average weighted by |D_k| / |D|."""
        weights = [float(update.samples) for update in updates]
        return Aggregate(weighted_average([update.weights for update in updates], weights), {})


Look = tuple[torch.dtype, tuple[int | None, ...]]  # type and shape of a tensor; None: any length


def unlike(extras: State, looks: Mapping[str, Look]) -> str:
    """How the extras of a reply differ from what was asked for, in a sentence, or nothing."""
    if extras.keys() != looks.keys():
        return f"It adds {', '.join(sorted(extras)) or 'nothing':.80}, not {', '.join(sorted(looks))}."
    for name, (kind, shape) in looks.items():
        own = extras[name]
        same = own.dim() == len(shape) and all(
            wanted in (None, length) for length, wanted in zip(own.shape, shape, strict=True)
        )
        if not same or own.dtype != kind:
            return f"Its {name} is {own.dtype} of shape {tuple(own.shape)}, not {kind} of {shape}."
    return ""


def refuse_unless_positive(options: object, *names: str, section: str = "method") -> None:
    """Refuse hyperparameters that are no finite numbers above 0; one that is None is left to its default."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{section}.{name} is {value}: give a number above 0.")


def refuse_unless_share(options: object, name: str, section: str = "method") -> None:
    """Refuse a hyperparameter that does not lie between 0 and 1."""
    value = getattr(options, name)
    if not 0 <= value <= 1:
        raise InputError(f"{section}.{name} is {value}: give a number between 0 and 1.")


def refuse_single_views(options: Any, section: str = "method") -> None:
    """Refuse a number of kept views of which no pair can be made."""
    if options.views_per_image < 0 or options.views_per_image == 1:
        value = options.views_per_image
        raise InputError(f"{section}.views_per_image is {value}: give 2 or more, or 0 for fresh views.")


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass whose fields are the hyperparameters."""

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """The network that the stages train; evaluation looks at its `online` branch."""

    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""


@runtime_checkable
class Clustering(Protocol):
    """What may follow a method that learns features alone: a head, and the stages that train it."""

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Give the network a cluster projector."""

    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""


@dataclass(frozen=True)
class NoClustering:
    """Nothing follows; a method without a head of its own is scored by k-means on all features."""

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """The network stays as it is."""

    def stages(self) -> tuple[Stage, ...]:
        """No stage."""
        return ()
