"""The options of `[federation]`, and how the server runs its rounds by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from fedmcc.errors import InputError
from fedmcc.federation.aggregation import DEFAULT, rule
from fedmcc.federation.privacy import PrivateAggregator, draw_secretly
from fedmcc.federation.update_checks import MAX_SAMPLES, Limits
from fedmcc.methods.base import Stage
from fedmcc.numerics.randomness import derive
from fedmcc.numerics.state_dicts import select

SECURE_MINIMUM = 3  # of two updates, each client can subtract its own from the sum


@dataclass(frozen=True)
class Federation:
    """Options of the server's rounds."""

    fraction: float = 1.0  # of the clients, drawn at random for each round that trains
    count: int | None = None  # number of clients drawn for each round that trains, instead of fraction
    only: int | None = None  # train this client only: the paper's single-client baseline
    minimum: int | None = None  # accepted updates that a round needs; None: 1, or 3 with secure_aggregation
    attempts: int = 3  # at a round before it fails, each with newly drawn clients
    norm_limit: float = 10.0  # refuse updates beyond this multiple of the median or of the model; inf: none
    max_samples: int | None = None  # refuse clients that report more images; None: no limit below 10^9
    half: bool = False  # send weights in half precision
    aggregation: str | None = None  # rule for combining updates; None: guarded, or mean with privacy.clip
    samples_limit: float = 2.0  # largest weight of a client, as a multiple of the median; not with mean
    secure_aggregation: bool = False  # the server learns the sum of all updates only
    open_statistics: bool = False  # send statistics that cannot be added up, such as centroids, without masks

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise InputError(f"federation.fraction is {self.fraction}: give a number above 0, up to 1.")
        for name in ("count", "minimum", "attempts", "max_samples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"federation.{name} is {value}: give 1 or more.")
        if self.secure_aggregation and self.minimum == 1:
            raise InputError(
                "federation.minimum is 1, but the sum of one update hides nothing: with "
                "federation.secure_aggregation omit it for 3, or give 2, with which each of two clients can "
                "compute the update of the other."
            )
        if not self.norm_limit > 1:  # also true for nan
            raise InputError(f"federation.norm_limit is {self.norm_limit}: give a number above 1, or inf.")
        if not self.samples_limit >= 1:
            raise InputError(f"federation.samples_limit is {self.samples_limit}: give 1 or more, or inf.")
        if self.aggregation is not None:
            rule(self.aggregation)  # raises InputError if there is none of this name
        if self.secure_aggregation and self.aggregation not in (None, "mean"):
            raise InputError(
                "federation.secure_aggregation hides single updates from the server, which "
                f"federation.aggregation '{self.aggregation}' compares: leave one of them out, "
                "and limit each update with privacy.clip."
            )
        if self.secure_aggregation and self.half:
            raise InputError("federation.half does not work with federation.secure_aggregation: omit one.")

    @property
    def fewest(self) -> int:
        """The number of accepted updates that a round needs."""
        if self.minimum is not None:
            return self.minimum
        return SECURE_MINIMUM if self.secure_aggregation else 1

    def size(self, registered: int) -> int:
        """The number of clients that take part in a round, out of those registered."""
        size = self.count or max(1, math.floor(self.fraction * registered + 0.5))
        size = 1 if self.only is not None else size
        if size > registered:
            raise InputError(
                f"federation.count is {size}, but there are only {registered} clients: lower it."
            )
        if size < self.fewest:
            default = "" if self.minimum else " by default with federation.secure_aggregation"
            raise InputError(
                f"federation.minimum is {self.fewest}{default}, but {size} clients take part in a round: "
                "lower it or let more take part."
            )
        return size

    def require_sums(self, net: nn.Module, stages: Sequence[Stage]) -> None:
        """Raise if updates are aggregated securely and the server needs more than sums of a stage."""
        if not self.secure_aggregation or self.open_statistics:
            return
        weights = net.state_dict()
        for stage in stages:
            if stage.additive(select(weights, stage.shared)) is None:
                raise InputError(
                    "federation.secure_aggregation hides sums and averages, but in the stage "
                    f"{stage.name} clients send other statistics: set "
                    "clustering.prototype_rounds of informative to 5 or so, use a clustering such as mcc, "
                    "or let the server read these statistics of each client with federation.open_statistics."
                )


@dataclass(frozen=True)
class Policy:
    """The options of the rounds, the seed for drawing participants, and the aggregator with privacy."""

    federation: Federation = Federation()
    seed: int = 0
    aggregator: PrivateAggregator = field(default_factory=PrivateAggregator)

    @property
    def limits(self) -> Limits:
        """The limits of updates; clipped ones have no norm limit, since its median depends on all clients.

        With secure aggregation, every update is the average, which clients that clip cannot move further.
        """
        clip, samples = self.aggregator.privacy.clip, self.federation.max_samples or MAX_SAMPLES
        if clip is None:
            return Limits(self.federation.norm_limit, samples)
        return Limits(math.inf, samples, clip if self.federation.secure_aggregation else math.inf)

    def at_server(self, stage: Stage) -> Stage:
        """The stage with the rule by which the server combines updates.

        Clipped updates are averaged unless another rule is set: noise is calibrated to their mean. With
        secure aggregation, only the mean is known.
        """
        averaged = self.aggregator.privacy.clip is not None or self.federation.secure_aggregation
        name = self.federation.aggregation or ("mean" if averaged else DEFAULT)
        limit = math.inf if name == "mean" else self.federation.samples_limit
        return replace(stage, average=rule(name), samples_limit=limit)

    def participants(self, stage: Stage, clients: Sequence[int], round: int, attempt: int) -> list[int]:
        """Who takes part: all clients where statistics are gathered, since clusters need everybody's images.

        In a stage that trains, clients are drawn: what one round misses, a later round can make up for.
        """
        return self.draw(clients, stage.name, round, attempt) if stage.trained else sorted(clients)

    def draw(self, clients: Sequence[int], *place: int | str) -> list[int]:
        """The participants at a place such as (stage, round, attempt), sorted.

        They depend only on the clients, the place and the seed, or with noise on the server's secret, because
        every client knows the seed. The engine and interruptions do not change them.
        """
        size = self.federation.size(len(clients))
        if size == len(clients):
            return sorted(clients)
        if self.aggregator.privacy.draws_secretly:
            return draw_secretly(self.aggregator.secret, clients, size, "/".join(map(str, place)))
        generator = np.random.default_rng(derive(self.seed, "participants", *place))
        return sorted(clients[index] for index in generator.choice(len(clients), size, replace=False))
