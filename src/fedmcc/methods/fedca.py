"""FedCA (Zhang et al. 2020): SimCLR with a dictionary of all clients' projections, and a base model.

There is no public code to compare with; uncertain details are options.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.losses import contrast
from fedmcc.messages import Task, Update
from fedmcc.methods.about import About
from fedmcc.methods.base import Aggregate, Memory, Parts, Stage
from fedmcc.methods.extras import extras_mismatch
from fedmcc.methods.hyperparameters import require_positive
from fedmcc.networks.heads import Norm, normalised_mlp
from fedmcc.networks.momentum import Branch, Network
from fedmcc.networks.pretrained import load_encoder
from fedmcc.networks.replay import without_gradient
from fedmcc.numerics.state_dicts import State, copy_into


@dataclass(frozen=True)
class FedCA:
    """SimCLR with other clients' projections as additional negatives; projections of images are shared.

    This costs privacy: in every round a client uploads the projections of `dictionary` of its images, and
    all other clients receive them. All other methods send only weights or statistics of many images.
    """

    about: ClassVar[About] = About(
        "federated representation",
        "Zhang et al.",
        2020,
        needs="a base model for the alignment",
        features_only=True,
        cost=0.72,
    )

    rounds: int = 100  # R
    epochs: int = 5  # E
    temperature: float = 0.07  # tau
    dictionary: int = 256  # images whose projections a client uploads
    base: Path | None = None  # safetensors file of the server's base encoder; None: no alignment
    alignment: float = 0.01  # weight of the squared distance to the base encoder's features
    hidden: int = 4096  # width of the projector
    projections: int = 2048
    norm: Norm = "batch"  # normalisation of the projector

    def __post_init__(self) -> None:
        require_positive(self, "temperature", "dictionary", "alignment", "hidden", "projections")

    def build(self, encoder: nn.Module, features: int, clusters: int) -> "Dictionary":
        """One branch (f, g_I), the dictionaries, and the base encoder if `base` is set."""
        base = None if self.base is None else _load_base(encoder, self.base)
        projector = normalised_mlp(features, self.hidden, self.projections, self.norm)
        return Dictionary(Branch(encoder, projector), base, self.projections)

    def stages(self) -> tuple[Stage, ...]:
        """One stage that trains the representation; the server sends the base encoder once."""
        frozen = () if self.base is None else ("base",)
        return (Representation(rounds=self.rounds, epochs=self.epochs, frozen=frozen, method=self),)


class Dictionary(Network):
    """A branch with the base encoder and the dictionaries of a round, which are not part of the state."""

    base: nn.Module | None
    foreign: Tensor  # projections of other clients' images
    gathered: Tensor  # projections of the last images trained on, to be sent to the server

    def __init__(self, online: Branch, base: nn.Module | None, projections: int) -> None:
        super().__init__(online)
        self.base = base
        for name in ("foreign", "gathered"):
            self.register_buffer(name, torch.zeros(0, projections), persistent=False)


class Outputs(NamedTuple):
    """One row per image: z of both views, log sum exp s(z, foreign) / tau, distance to the base model."""

    z_a: Tensor
    z_b: Tensor
    foreign_a: Tensor
    foreign_b: Tensor
    drift: Tensor


@dataclass(frozen=True, kw_only=True)
class Representation(Stage):
    """NT-Xent with the dictionary in every denominator, plus alignment with the base model."""

    method: FedCA
    name: str = "representation"
    trained: Parts = ("online",)
    shared: Parts = ("online",)

    def represent(self, net: Dictionary, a: Tensor, b: Tensor) -> Outputs:
        """Project both views and compare them with the dictionary and the base model."""
        h_a, h_b = net.online.encoder(a), net.online.encoder(b)
        z_a, z_b = (F.normalize(net.online.instance(h), dim=1) for h in (h_a, h_b))
        foreign_a, foreign_b = (_log_negatives(z, net.foreign, self.method.temperature) for z in (z_a, z_b))
        drift = 0.5 * (_drift(net.base, a, h_a) + _drift(net.base, b, h_b))
        return Outputs(z_a, z_b, foreign_a, foreign_b, drift)

    def loss(self, outputs: Outputs) -> Tensor:
        """½ (contrast with anchors a + contrast with anchors b) + alignment."""
        z_a, z_b, foreign_a, foreign_b, drift = outputs
        a = contrast(z_a, z_b, self.method.temperature, True, foreign_a)
        b = contrast(z_b, z_a, self.method.temperature, True, foreign_b)
        return 0.5 * (a + b) + self.method.alignment * drift.mean()

    def after_step(self, net: Dictionary, outputs: Outputs) -> None:
        """Keep the latest projections for the dictionary."""
        latest = torch.cat([net.gathered, outputs.z_a.detach().to(net.gathered.dtype)])
        net.gathered = latest[-self.method.dictionary :]

    def receive(self, net: Dictionary, task: Task, memory: Memory) -> None:
        """Adopt the global model and the other clients' rows of the dictionary.

        The client's own rows are left out, because they would repel an image from itself.
        """
        copy_into(net, task.weights)
        net.gathered = net.gathered[:0]
        net.foreign = net.foreign[:0]
        if task.extras:
            others = task.extras["dictionary"][task.extras["owners"] != task.client]
            net.foreign = others.to(net.foreign)

    def extras(self, net: Any, batches: object) -> State:
        """The projections of the last images trained on."""
        return {"dictionary": net.gathered}

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """Average the weights and concatenate the dictionaries, with the owner of each row."""
        parts = [update.extras["dictionary"] for update in updates]
        owners = [torch.full((len(part),), u.client) for u, part in zip(updates, parts, strict=True)]
        dictionary = {"dictionary": torch.cat(parts), "owners": torch.cat(owners)}
        return Aggregate(super().combine(updates, model).weights, dictionary)

    def extras_error(self, update: Update) -> str:
        """Check that the dictionary has at most `dictionary` rows, none longer than 1."""
        if mismatch := extras_mismatch(
            update.extras, {"dictionary": (torch.float32, (None, self.method.projections))}
        ):
            return mismatch
        rows = update.extras["dictionary"]
        if len(rows) > self.method.dictionary:
            return f"Its dictionary has {len(rows)} rows; at most {self.method.dictionary} are allowed."
        return "Its dictionary has rows longer than 1." if (rows.norm(dim=1) > 1.01).any() else ""


def _log_negatives(
    z: Float[Tensor, "n d"], foreign: Float[Tensor, "m d"], temperature: float
) -> Float[Tensor, " n"]:
    """log sum exp s(z, foreign) / tau for each row; minus infinity if the dictionary is empty."""
    if len(foreign) == 0:
        return z.new_full((len(z),), -torch.inf)
    return (z @ foreign.T / temperature).logsumexp(dim=1)


def _drift(base: nn.Module | None, images: Tensor, features: Tensor) -> Tensor:
    """Squared distance of each row of features to the base model's features."""
    if base is None:
        return features.new_zeros(len(features))
    (base_features,) = without_gradient(lambda: (base(images),))
    return (features - base_features).square().sum(dim=1)


def _load_base(encoder: nn.Module, path: Path) -> nn.Module:
    """A copy of the encoder with the weights of the file."""
    if not path.is_file():
        raise InputError(f"The weights file '{path}' does not exist: check method.base.")
    base = deepcopy(encoder)
    load_encoder(base, path)
    return base
