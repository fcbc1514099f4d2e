"""Linear evaluation: accuracy of a single linear layer that is trained on features."""

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
class Backbone:
    """The encoder below the linear layer; training changes it unless it is frozen."""

    features: int
    encoder: nn.Module
    prepare: Callable[[Tensor], Tensor]  # turns inputs of examples into inputs of the encoder
    device: torch.device
    frozen: bool = True

    @classmethod
    def of_features(cls, features: int, device: torch.device) -> "Backbone":
        """A backbone for examples that are features already."""
        return cls(features, nn.Identity(), lambda rows: rows, device)


@dataclass(frozen=True)
class ClassifierTraining:
    """How a classifier is trained, with Adam on cross-entropy; the defaults are those of linear evaluation.

    The number of epochs is fixed and the last one counts, as in the published figures of federated
    representations; logistic regression trained to its optimum would give other figures.
    """

    learning_rate: float = 3e-3
    epochs: int = 200
    batch_size: int = 2048

    def accuracy(
        self, backbone: Backbone, train_set: Examples, test_set: Examples, draw: torch.Generator
    ) -> float:
        """Top-1 accuracy after the last epoch; a class without training examples is never predicted."""
        classes, numbers = np.unique(train_set.labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError("The labelled images are all of one class: give images of at least 2 classes.")
        net = Network(Branch(backbone.encoder, cluster_projector=nn.Linear(backbone.features, len(classes))))
        assert net.online.cluster_projector is not None
        initialise(net.online.cluster_projector, draw)
        net.to(backbone.device)
        self._fit(net, backbone, Examples(train_set.inputs, numbers), draw)
        logits = extract(net.online, test_set.inputs, backbone.prepare).assignments
        assert logits is not None
        return float(np.mean(classes[logits.argmax(axis=1)] == test_set.labels))

    def _fit(self, net: Network, backbone: Backbone, train_set: Examples, draw: torch.Generator) -> None:
        stage = PROBE if backbone.frozen else FINETUNE
        optimizer = torch.optim.Adam(trainable(net, stage), self.learning_rate)
        for _ in train(net, stage, self._batches(backbone, train_set, draw), optimizer):
            pass

    def _batches(
        self, backbone: Backbone, train_set: Examples, draw: torch.Generator
    ) -> Iterator[tuple[Tensor, Int64[Tensor, " n"]]]:
        """Batches of all epochs, whose sizes differ by at most 1: BatchNorm cannot normalise one image."""
        count = math.ceil(len(train_set.labels) / self.batch_size)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(train_set.labels), generator=draw).tensor_split(count):
                batch = train_set.take(rows.numpy())
                inputs, labels = (torch.from_numpy(array).to(backbone.device) for array in batch)
                yield backbone.prepare(inputs), labels


class ClassifierOutputs(NamedTuple):
    """Logits and class of each image."""

    logits: Float[Tensor, "n k"]
    labels: Int64[Tensor, " n"]


@dataclass(frozen=True, kw_only=True)
class Supervised(Stage):
    """Cross-entropy of the cluster projector; its pairs are images and their classes, not two views."""

    name: str = "supervised"
    rounds: int = 1
    epochs: int = 1
    trained: Parts = (HEAD,)
    shared: Parts = ()
    frozen: Parts = (ENCODER,)

    def represent(self, net: Any, a: Tensor, b: Tensor) -> ClassifierOutputs:
        """Logits of the images `a`, with their classes `b`."""
        return ClassifierOutputs(net.online.assign(net.online.encoder(a)), b)

    def loss(self, outputs: ClassifierOutputs) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(*outputs)


PROBE = Supervised()
FINETUNE = Supervised(trained=(ENCODER, HEAD), frozen=())
