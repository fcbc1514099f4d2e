"""FedMCC+, the default method: FedMCC improved for clients that hold few classes each.

Instance contrast, then contrast with the images of all clients through their second moment, then new
statistics of the averaged encoder, then federated spectral clustering instead of a trained head. Optionally,
self-training of encoder and prototypes follows, and is undone unless it helps. docs/decisions/0005 and 0027
report the effect of each part.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedmcc.errors import InputError
from fedmcc.losses import Anchor
from fedmcc.messages import Task
from fedmcc.methods.about import About
from fedmcc.methods.base import Memory, Stage
from fedmcc.methods.calibration import Calibration
from fedmcc.methods.cross_client_contrast import CrossClientContrast
from fedmcc.methods.federated_kmeans import require_share
from fedmcc.methods.federated_spectral import FederatedSpectral, require_balance, require_count
from fedmcc.methods.fedmcc import Representation
from fedmcc.methods.hyperparameters import require_fraction, require_positive
from fedmcc.methods.mcc import MomentumContrast
from fedmcc.methods.self_training import ModelSelection, SelfTraining, SelfTrainingPair
from fedmcc.networks.heads import instance_projector
from fedmcc.networks.momentum import Branch, MomentumPair
from fedmcc.numerics.normalized_cut import Balance


@dataclass(frozen=True)
class FedMCCPlus(MomentumContrast):
    """FedMCC with cross-client contrast, federated spectral clustering and optional self-training."""

    about: ClassVar[About] = About("this paper", "this program, docs/decisions/0005", 2026, cost=0.85)

    rounds: int = 100  # R of the stages representation and separation together
    epochs: int = 1  # E
    anchor: Anchor = "online"
    half_life: float = 0.0  # rounds in which at least half of the target is renewed; 0: `momentum` alone
    separation: float = 0.5  # fraction of the rounds with cross-client contrast
    repulsion: float = 3.0  # weight of the negatives in the stage separation
    emphasis: float = 0.0  # additional weight of other clients' negatives as far as their moments differ
    calibrate: bool = True  # measure BatchNorm's running statistics anew before the clustering
    axes: float = 3.0  # whitened axes per cluster; 0: no whitening
    variance: float = 0.95  # share that the whitened axes hold at most; axes beyond it are left out as noise
    prototypes: float | None = None  # per cluster; None: 10 to 20, by the number of images
    prototype_rounds: int = 0  # that find prototypes by sums alone; 0: centroids, in one round
    prototype_temperature: float = 0.05  # of the soft assignments
    neighbours: int = 10  # images of a client that share prototypes with an image; 0: none
    ownership: bool = True  # clusters are also formed by which clients hold the prototypes, if clients differ
    balance: Balance = "auto"  # weight of equal cluster sizes when prototypes are merged; auto: from the data
    members: int = 5  # clusterings in the consensus; 1: a single one
    choose: bool = False  # the number of clusters from the affinities; `clusters` is then the largest
    smallest: int | None = None  # images of a centroid; None: 10, or 1 for a client alone
    polish_rounds: int = 0  # rounds of self-training, which changes little (docs/decisions/0005); 0: none
    polish_pace: float = 0.2  # multiple of the learning rate in self-training

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(self, "separation")
        require_positive(self, "repulsion", "polish_pace", "prototypes", "prototype_temperature", "smallest")
        require_positive(self, "members")
        if not 0 <= self.half_life < math.inf:
            raise InputError(f"method.half_life is {self.half_life}: give 0 or more rounds.")
        require_balance(self.balance, "method")
        require_count(self, "neighbours", "prototype_rounds", "emphasis", section="method")
        require_share(self.variance, "method")
        if self.choose and self.polish_rounds:
            raise InputError("method.choose excludes self-training: set method.polish_rounds to 0.")
        if self.choose and self.members < 2:
            raise InputError("method.choose compares the members: set method.members to 2 or more.")
        if self.target == "share":
            raise InputError('method.target = "share" is an ablation of fedmcc: use "keep" or "reset".')

    def build(self, encoder: nn.Module, features: int, clusters: int) -> SelfTrainingPair:
        """Two branches with a head of prototypes each, and a copy for the state before self-training."""
        instance = instance_projector(features, self.hidden or features, self.projections)
        head = self._clustering().head(features, clusters)
        return SelfTrainingPair(Branch(encoder, instance, head), self.projections)

    def stages(self) -> tuple[Stage, ...]:
        """Instance contrast, cross-client contrast, calibration, spectral clustering, self-training."""
        epochs, across = self.epochs, round(self.separation * self.rounds)
        stages: list[Stage] = []
        if across < self.rounds or not across:
            stages.append(FollowedContrast(rounds=self.rounds - across, epochs=epochs, method=self))
        if across:
            stages.append(self._separation(across))
        if self.calibrate:
            stages.append(Calibration())
        stages += self._clustering().stages()
        if self.polish_rounds:
            self_training = SelfTraining(
                rounds=self.polish_rounds,
                epochs=epochs,
                learning_rate_factor=self.polish_pace,
                momentum=self.momentum,
                entropy_weight=self.entropy_weight,
            )
            stages += [self_training, ModelSelection()]
        return tuple(stages)

    def _separation(self, rounds: int) -> Stage:
        return CrossClientContrast(
            rounds=rounds,
            epochs=self.epochs,
            projections=self.projections,
            repulsion=self.repulsion,
            emphasis=self.emphasis,
        )

    def _clustering(self) -> FederatedSpectral:
        return FederatedSpectral(
            axes=self.axes,
            variance=self.variance,
            prototypes=self.prototypes,
            temperature=self.prototype_temperature,
            neighbours=self.neighbours,
            ownership=self.ownership,
            balance=self.balance,
            members=self.members,
            prototype_rounds=self.prototype_rounds,
            choose=self.choose,
            smallest=self.smallest,
        )


@dataclass(frozen=True, kw_only=True)
class FollowedContrast(Representation):
    """Algorithm 1 with a target that follows within rounds, however few steps a client does in a round.

    With m = .99 a client of six steps per round would replace half of its target in twelve rounds.
    """

    method: FedMCCPlus

    def receive(self, net: MomentumPair, task: Task, memory: Memory) -> None:
        """Adopt the global model, and limit the momentum by the steps in a round."""
        super().receive(net, task, memory)
        steps = self.method.half_life * int(memory.get("steps", 0))
        net.largest_momentum = 0.5 ** (1 / max(1.0, steps)) if steps else 1.0

    def after_step(self, net: MomentumPair, outputs: object) -> None:
        """Update the target by the moving average."""
        net.update(min(self.method.momentum, net.largest_momentum))
