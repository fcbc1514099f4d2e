"""Linear evaluation: how well a single linear layer, trained on features, tells the classes apart."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.evaluation.features import extract
from fedmcc.evaluation.splits import Examples
from fedmcc.methods.base import Parts, Stage
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Branch, Network
from fedmcc.training.loop import train, trainable

ENCODER, HEAD = "online.encoder", "online.cluster_projector"


@dataclass(frozen=True, eq=False)
class Body:
    """What the linear layer stands on; an encoder that is not frozen is changed by training."""

    features: int
    encoder: nn.Module
    prepare: Callable[[Tensor], Tensor]  # rows of examples to the encoder's input
    device: torch.device
    frozen: bool = True

    @classmethod
    def of_features(cls, features: int, device: torch.device) -> "Body":
        """The examples are features already."""
        return cls(features, nn.Identity(), lambda rows: rows, device)


@dataclass(frozen=True)
class Supervision:
    """How a classifier is trained, with Adam on cross-entropy; the defaults are linear evaluation.

    A fixed number of epochs, not logistic regression run to its optimum: this is what the published
    figures of federated representations are, and what the last epoch gives is the result.
    """

    learning_rate: float = 3e-3
    epochs: int = 200
    batch_size: int = 2048

    def accuracy(self, body: Body, learned: Examples, scored: Examples, draw: torch.Generator) -> float:
        """Top-1 accuracy on `scored` after the last epoch; a class that was not learned is never found."""
        classes, numbers = np.unique(learned.labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(
                f"Labels of {len(classes)} class are nothing to learn: give images of 2 or more."
            )
        net = Network(Branch(body.encoder, cluster_projector=nn.Linear(body.features, len(classes))))
        assert net.online.cluster_projector is not None
        initialise(net.online.cluster_projector, draw)
        net.to(body.device)
        self._fit(net, body, Examples(learned.inputs, numbers), draw)
        logits = extract(net.online, scored.inputs, body.prepare).assignments
        assert logits is not None
        return float(np.mean(classes[logits.argmax(axis=1)] == scored.labels))

    def _fit(self, net: Network, body: Body, learned: Examples, draw: torch.Generator) -> None:
        stage = PROBE if body.frozen else FINETUNE
        optimizer = torch.optim.Adam(trainable(net, stage), self.learning_rate)
        for _ in train(net, stage, self._batches(body, learned, draw), optimizer):
            pass

    def _batches(
        self, body: Body, learned: Examples, draw: torch.Generator
    ) -> Iterator[tuple[Tensor, Int64[Tensor, " n"]]]:
        """All epochs, in batches of equal size up to one: BatchNorm cannot normalise a last one of one."""
        count = math.ceil(len(learned.labels) / self.batch_size)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(learned.labels), generator=draw).tensor_split(count):
                inputs = torch.from_numpy(learned.inputs[rows.numpy()]).to(body.device)
                yield body.prepare(inputs), torch.from_numpy(learned.labels[rows.numpy()]).to(body.device)


class Classified(NamedTuple):
    """Scores of every class for each image, and its class."""

    logits: Float[Tensor, "n k"]
    labels: Int64[Tensor, " n"]


@dataclass(frozen=True, kw_only=True)
class Supervised(Stage):
    """Cross-entropy of the cluster projector's outputs; its pairs are images and their classes, not views."""

    name: str = "supervised"
    rounds: int = 1
    epochs: int = 1
    trained: Parts = (HEAD,)
    shared: Parts = ()
    frozen: Parts = (ENCODER,)

    def represent(self, net: Any, a: Tensor, b: Tensor) -> Classified:
        """The scores of the images `a`, beside their classes `b`."""
        return Classified(net.online.assign(net.online.encoder(a)), b)

    def loss(self, outputs: Classified) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(*outputs)


PROBE = Supervised()
FINETUNE = Supervised(trained=(ENCODER, HEAD), frozen=())
