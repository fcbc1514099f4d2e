"""Algorithm 2: MCC's clustering stage on a frozen encoder, usable after any method that trains one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedmcc.losses import Anchor, Quartet, cluster_balance, momentum_contrast
from fedmcc.messages import Task, Update
from fedmcc.methods.base import STARTED, Aggregate, Memory, Parts, Stage
from fedmcc.methods.extras import Additive, additive_mismatch
from fedmcc.methods.hyperparameters import require_fraction, require_positive, require_view_pairs
from fedmcc.methods.momentum_target import Target
from fedmcc.methods.other_clients import mean_over_images, part_of_others
from fedmcc.networks.heads import cluster_projector
from fedmcc.networks.momentum import Branch, ema_update, set_cluster_projector
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State, copy_into

Marginal = Literal["client", "all"]


@dataclass(frozen=True)
class ClusterContrast:
    """MCC's clustering stage: cluster contrast trains a new head on the frozen encoder (Algorithm 2)."""

    rounds: int = 10  # R
    epochs: int = 5  # E
    temperature: float = 1.0  # tau_C
    momentum: float = 0.99  # m
    entropy_weight: float = 1.0  # weight of the online entropies, which are maximised (D2, D7)
    anchor: Anchor = "online"  # D6; "paper": as printed
    positive_in_denominator: bool = False  # D1
    target: Target = "keep"  # the target head at the start of a round (D10)
    hidden: int | None = None  # width of the projector; None: the number of features
    views_per_image: int = 8  # views whose features are cached; 0: new views in every step
    unlabelled: bool = True  # use images without a label too (D16)
    marginal: Marginal = "client"  # whose cluster sizes have their entropy maximised (D21)

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "hidden", section="clustering")
        require_fraction(self, "momentum", section="clustering")
        require_view_pairs(self, section="clustering")

    def extend(self, net: Any, features: int, clusters: int) -> None:
        """Add an online cluster projector and its target to the network."""
        if not hasattr(net, "target"):
            net.target = Branch(nn.Identity())
        set_cluster_projector(net, cluster_projector(features, self.hidden or features, clusters))
        self.add_sizes(net, clusters)

    def add_sizes(self, net: Any, clusters: int) -> None:
        """Add the cluster sizes of this and the other clients to the network, if the option uses them."""
        if self.marginal == "all":
            net.sizes = ClusterSizes(clusters)

    def stages(self) -> tuple[Stage, ...]:
        """One stage."""
        head, target = "online.cluster_projector", "target.cluster_projector"
        shared = (head, target) if self.target == "share" else (head,)
        kind = Clustering if self.marginal == "client" else GlobalClustering
        stage = kind(rounds=self.rounds, epochs=self.epochs, shared=shared, method=self)
        return (replace(stage, views_per_image=self.views_per_image, labelled_only=not self.unlabelled),)


@dataclass(frozen=True, kw_only=True)
class Clustering(Stage):
    """Train the cluster projector with L_C."""

    method: ClusterContrast
    name: str = "clustering"
    trained: Parts = ("online.cluster_projector",)
    shared: Parts = ("online.cluster_projector",)
    frozen: Parts = ("online.encoder",)
    encoder: str = "online.encoder"

    def represent(self, net: Any, a: Tensor, b: Tensor) -> Quartet:
        """Both branches use the features of one frozen encoder (D13)."""
        online, target = net.online, net.target
        if not self.on_features:
            a, b = without_gradient(lambda: (online.encoder(a), online.encoder(b)))
        h = torch.cat((a, b))
        t_a, t_b = without_gradient(lambda: target.assign(h).chunk(2))
        y_a, y_b = online.assign(h).chunk(2)
        return Quartet(y_a, y_b, t_a, t_b)

    def loss(self, outputs: Any) -> Tensor:
        """L_C with the online entropies maximised (D2) and without those of the target (D7)."""
        method = self.method
        columns = Quartet(*(y.T for y in outputs[:4]))
        form = (method.anchor, method.positive_in_denominator)
        balance = self.balance(outputs)
        return momentum_contrast(columns, method.temperature, *form) - method.entropy_weight * balance

    def balance(self, outputs: Any) -> Tensor:
        """The entropies of the cluster sizes in both views."""
        return cluster_balance(outputs.a) + cluster_balance(outputs.b)

    def after_step(self, net: Any, outputs: object) -> None:
        """Update the target's cluster projector by the moving average."""
        ema_update(net.target.cluster_projector, net.online.cluster_projector, self.method.momentum)

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Adopt the global head; the target head starts as its copy and stays local (D10)."""
        copy_into(net, task.weights)
        first = STARTED not in memory
        if self.method.target == "reset" or (self.method.target == "keep" and first):
            net.target.cluster_projector.load_state_dict(net.online.cluster_projector.state_dict())
        memory[STARTED] = torch.tensor(True)


class ClusterSizes(nn.Module):
    """The mean soft assignment of a client, as last sent to the server, and that of the other clients."""

    own: Tensor
    others: Tensor  # sum over the other clients' images, divided by the number of all images
    share: Tensor  # this client's fraction of all images

    def __init__(self, clusters: int) -> None:
        super().__init__()
        self.register_buffer("own", torch.zeros(clusters))
        self.register_buffer("others", torch.zeros(clusters), persistent=False)
        self.register_buffer("share", torch.ones(()), persistent=False)


class Assigned(NamedTuple):
    """Soft assignments as in a Quartet, and in every row the other clients' sizes and this client's share."""

    a: Tensor
    b: Tensor
    a_target: Tensor
    b_target: Tensor
    others: Tensor
    share: Tensor


@dataclass(frozen=True, kw_only=True)
class GlobalClustering(Clustering):
    """L_C with the entropy of the cluster sizes of all clients, so that one need not fill all clusters (D21).

    A client sends its mean soft assignment, k numbers, and receives the mean over all images.
    """

    def represent(self, net: Any, a: Tensor, b: Tensor) -> Any:
        """The soft assignments, and the sizes of the other clients' clusters."""
        assigned, sizes = super().represent(net, a, b), net.sizes
        count = len(assigned.a)
        return Assigned(*assigned, sizes.others.expand(count, -1), sizes.share.expand(count))

    def balance(self, outputs: Assigned) -> Tensor:
        """H(w p + rest) / w for both views: its mean over clients has the gradient of the global entropy."""
        others, share = outputs.others[0], outputs.share[0]
        sizes = (share * y.mean(dim=0) + others for y in (outputs.a, outputs.b))
        a, b = (cluster_balance(size[None]) for size in sizes)
        return (a + b) / share

    def receive(self, net: Any, task: Task, memory: Memory) -> None:
        """Adopt the global head, and compute the sizes of the other clients' clusters."""
        super().receive(net, task, memory)
        others, share = part_of_others(net.sizes.own, "sizes", task, memory)
        net.sizes.others.copy_(others)
        net.sizes.share.copy_(share)

    @torch.no_grad()
    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """This client's mean soft assignment of its images without augmentation."""
        net.eval()
        y = torch.cat([net.online.assign(net.online.encoder(batch)).cpu() for batch in batches])
        net.sizes.own.copy_(y.double().mean(dim=0))
        return {"sizes": net.sizes.own}

    def additive(self, weights: State) -> dict[str, Additive]:
        """The mean assignment."""
        last = max(name for name in weights if name.endswith("bias"))  # of the last layer
        return {"sizes": Additive(torch.float32, (len(weights[last]),))}

    def extras_error(self, update: Update) -> str:
        """Check that the sizes can be the mean of soft assignments."""
        if mismatch := additive_mismatch(update.extras, self.additive(update.weights)):
            return mismatch
        sizes = update.extras["sizes"]
        valid = bool((sizes >= 0).all()) and abs(float(sizes.sum()) - 1) <= 1e-2
        return "" if valid else "Its cluster sizes are not the mean of soft assignments."

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the weights; the mean sizes are sent with the next tasks."""
        extras = mean_over_images(self, updates, "sizes")
        return Aggregate(super().combine(updates, model).weights, extras)
