"""The interface of a method: hyperparameters, a network, and stages with two functions and optional hooks.

The default of every hook is plain federated averaging. Centralized training is a federation of one client.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedmcc.messages import Task, Update
from fedmcc.methods.extras import Additive
from fedmcc.methods.inputs import VIEW_PAIR, Overview, Sights
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import Average, State, copy_into, mean

Parts = tuple[str, ...]  # names of submodules, such as "online.encoder"
Memory = dict[str, Tensor]  # tensors that a client keeps between rounds of a stage, besides its network
STARTED = "met"  # key of a Memory after the first task of a stage; the string is part of saved client states


class Aggregate(NamedTuple):
    """Result of the server's step: the new shared weights, and extra tensors for the next tasks."""

    weights: State
    extras: State


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a method; submodule names declare what is trained, shared and frozen.

    A subclass defines `represent` and `loss`; the default of every other hook is federated averaging.

    Parameters
    ----------
    name
        Name of the stage, also in file names and metrics.
    rounds
        R, the number of rounds.
    epochs
        E, local epochs in a round; 0 if the stage trains nothing.
    trained
        Submodules that the optimiser updates, such as `("online.encoder",)`.
    shared
        Submodules, or single tensors of them, averaged every round.
    frozen
        Submodules that the server sends once, with a client's first task of the stage.
    learning_rate_factor
        Multiple of `training.learning_rate`.
    encoder
        The frozen submodule whose features are cached; empty: none.
    views_per_image
        Views whose features are cached; 0: new views in every step.
    on_features
        Whether `represent` gets pairs of cached features instead of views.
    precision
        Autocast data type of a step; None: no autocast.
    sees
        What `represent` gets of each image, in order; by default two random views.
    labelled_only
        Whether images without a label are left out, if a data set has both (D16).
    on_unlabelled
        The stage that trains in each round after this one, on the images that this one then leaves out.
    average
        The server's rule for combining weights, set from `federation.aggregation`.
    samples_limit
        Largest weight of a client in the server's step, as a multiple of the median number of images.
    equal_clients
        Whether all clients have the same weight in the server's step, as clipped ones have.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from fedmcc import Stage, losses
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Contrast(Stage):
    ...     trained: tuple[str, ...] = ("online",)
    ...     shared: tuple[str, ...] = ("online",)
    ...     def represent(self, net, a, b):
    ...         return net.online.encoder(a), net.online.encoder(b)
    ...     def loss(self, outputs):
    ...         return losses.nt_xent(*outputs, temperature=0.5)
    >>> Contrast(name="contrast", rounds=10, epochs=1).shared
    ('online',)
    """

    name: str
    rounds: int
    epochs: int
    trained: Parts
    shared: Parts
    frozen: Parts = ()
    learning_rate_factor: float = 1.0
    encoder: str = ""
    views_per_image: int = 0
    on_features: bool = False
    precision: torch.dtype | None = None
    sees: Sights = VIEW_PAIR
    labelled_only: bool = False
    on_unlabelled: "Stage | None" = None
    average: Average = mean
    samples_limit: float = math.inf
    equal_clients: bool = False

    def __post_init__(self) -> None:
        if self.views_per_image and self.sees != VIEW_PAIR:
            raise ValueError(f"The stage {self.name} caches features of views: it must see (VIEW, VIEW).")

    def outputs(self, net: Any, *seen: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `represent`, computed in the stage's precision; real numbers become float32."""
        if self.precision is None:
            return self.represent(net, *seen)
        with torch.autocast(seen[0].device.type, self.precision):
            outputs: Any = self.represent(net, *seen)
        make = getattr(outputs, "_make", tuple)
        return make([output.float() if output.is_floating_point() else output for output in outputs])

    def represent(self, net: Any, *seen: Any, **_: Any) -> tuple[Tensor, ...]:
        """Compute the outputs for a batch; a method declares a parameter for each element of `sees`.

        A row must depend only on its own image (except through BatchNorm), because batches may be processed
        in chunks. Wrap computations without gradient, such as a target network's, in
        `fedmcc.networks.replay.without_gradient`.

        Parameters
        ----------
        net
            The network that the method built; `net.notes` has what the client stores about its images.
        seen
            A tensor for each element of `sees`: by default two views of each image, or two cached features.

        Returns
        -------
        tuple[Tensor, ...]
            A NamedTuple of tensors with one row per image, the argument of `loss`.
        """
        raise NotImplementedError(f"The stage {self.name} trains: define represent.")

    def loss(self, outputs: Any) -> Tensor:
        """Compute the loss of a whole batch; only here may images interact.

        Parameters
        ----------
        outputs
            The outputs of `represent`.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        raise NotImplementedError(f"The stage {self.name} trains: define loss.")

    def after_step(self, net: Any, outputs: Any) -> None:
        """Called after the optimiser's step, for example to update a target network or notes."""

    def first_notes(self, net: Any, count: int) -> State:
        """The notes of a client with `count` images at the start of the stage; `represent` must accept them.

        Notes are tensors that stay at a client until the stage ends, such as a row for each image.
        """
        return {}

    def prepare(self, net: Any, overview: Overview) -> None:
        """Called before each epoch, in eval mode and without gradient, for example to compute notes."""

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Load a task into the client's network; by default, adopt the global weights."""
        copy_into(net, task.weights)

    def observe(self, net: Any, batches: Iterable[tuple[Tensor, ...]]) -> None:
        """Called once in a round of a stage that trains nothing but has epochs, with what it sees of them."""

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """Small tensors that a client adds to its update; `batches` are its images without augmentation."""
        return {}

    def additive(self, weights: State) -> Mapping[str, Additive] | None:
        """The extras of which the server needs only sums, if these are all; None: it needs more.

        Secure aggregation hides them. `weights` are the shared ones. A stage with its own `extras` or
        `combine` declares them here.
        """
        plain = type(self).extras is Stage.extras and type(self).combine is Stage.combine
        return {} if plain else None

    def extras_error(self, update: Update) -> str:
        """Why the extras of an update with valid weights are refused, as a sentence; empty if accepted."""
        return f"Unexpected extra tensor {min(update.extras)!r:.80}." if update.extras else ""

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The server's step from the global network `model`: by default, the average by |D_k| / |D|."""
        states = [update.weights for update in updates]
        return Aggregate(self.average(states, self.counts(updates), model), {})

    def counts(self, updates: Sequence[Update]) -> list[float]:
        """The number of images by which each client counts, so that none can claim any number.

        Use it for averages in `combine`, and multiply sums over images by `counts / samples`.
        """
        median = median_low(update.samples for update in updates)
        if self.equal_clients:
            return [float(median)] * len(updates)
        limit = self.samples_limit * median
        return [min(float(update.samples), limit) for update in updates]


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass whose fields are the hyperparameters, with defaults.

    Examples
    --------
    >>> from fedmcc import METHODS, Method
    >>> method = METHODS["fedmcc"](rounds=50)
    >>> isinstance(method, Method)
    True
    >>> [stage.name for stage in method.stages()]
    ['representation']
    """

    def build(self, encoder: nn.Module, features: int, clusters: int) -> Network:
        """Build the network that the stages train; its `online` branch is evaluated.

        Parameters
        ----------
        encoder
            The encoder, a module from images to rows of features.
        features
            Number of features.
        clusters
            Number of clusters.

        Returns
        -------
        Network
            The network with all its heads.
        """

    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""


@runtime_checkable
class Clustering(Protocol):
    """A cluster head and the stages that train it, for methods that learn only features.

    Examples
    --------
    >>> from fedmcc import CLUSTERINGS, Clustering
    >>> clustering = CLUSTERINGS["kmeans"]()
    >>> isinstance(clustering, Clustering)
    True
    >>> [stage.name for stage in clustering.stages()]
    ['whitening', 'centroids']
    """

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Add a cluster projector to the network.

        Parameters
        ----------
        net
            The network of a method without a cluster projector.
        features
            Number of features of its encoder.
        clusters
            Number of clusters.
        """

    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""


@dataclass(frozen=True)
class NoClustering:
    """No clustering stage; a method without a cluster head is evaluated by k-means on its features."""

    def extend(self, net: Network, features: int, clusters: int) -> None:
        """Leave the network unchanged."""

    def stages(self) -> tuple[Stage, ...]:
        """No stages."""
        return ()
