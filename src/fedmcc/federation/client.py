"""A client: its own images, and how it answers a task of the server."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedmcc.data.base import Images
from fedmcc.federation.privacy import clipped
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Memory, Stage
from fedmcc.networks.momentum import Network
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import State, add_prefix, copy_into, detached, select, strip_prefix
from fedmcc.training.chunked import ViewPair
from fedmcc.training.feature_cache import FeatureCache, Features, FeatureSource, feature_pairs
from fedmcc.training.loop import Step, Training, lazy_pairs, to_device, train, trainable
from fedmcc.training.timing import timed
from fedmcc.training.torch_setup import autocast_dtype
from fedmcc.views import Views

PLAIN_BATCH = 512
AnyPair = ViewPair | tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Client:
    """One owner of images. What it remembers between rounds is handed in and out as a state."""

    index: int
    images: Images
    views: Views
    training: Training
    seed: int
    clip: float | None = None  # length that an update may have when it leaves
    cache: FeatureCache = field(default_factory=FeatureCache)  # of the clients of a process

    def answer(
        self, net: Network, stage: Stage, task: Task, state: State
    ) -> Generator[Step, None, tuple[Update, State]]:
        """ClientLocalTraining of Algorithms 1 and 2: receive, train E epochs, reply.

        `net` is a workbench: `state` is loaded into it first. Returns the reply and the new state.
        """
        with timed("receive"):
            task = task.unpacked()
            copy_into(net, strip_prefix("net", state))
            memory = strip_prefix(f"memory.{stage.name}", state)
            memory["samples"] = torch.tensor(len(self.images))
            stage.receive(net, task, memory)
        stage = replace(stage, precision=autocast_dtype(self.training.precision))
        parameters = trainable(net, stage)
        optimizer, losses = None, []
        if parameters:
            passed = (task.round - 1) / stage.rounds
            optimizer = self.training.build_optimizer(parameters, stage.learning_rate_factor, passed)
            if self.training.keep_optimizer:
                _restore(optimizer, strip_prefix(f"optimizer.{stage.name}", state))
            chunks = self.training.chunks(self._batch_size)
            trained, pairs = self._material(net, stage, task)
            for loss in train(net, trained, pairs, optimizer, chunks):
                losses.append(loss)
                yield Step(self.index, loss, self._batch_size)
        with timed("reply"):
            return self._reply(net, stage, task, losses), self._remember(net, stage, memory, optimizer)

    @property
    def images_per_epoch(self) -> int:
        """Images that the optimiser sees in an epoch; those that fill no batch sit it out."""
        return len(self.images) // self._batch_size * self._batch_size

    @property
    def _batch_size(self) -> int:
        return min(self.training.batch_size, len(self.images))

    def _material(self, net: Network, stage: Stage, task: Task) -> tuple[Stage, Iterator[AnyPair]]:
        """The pairs of a round, of views or of kept features, and the stage as it takes them."""
        draw = generator(self.seed, "train", self.index, stage.name, task.round)
        features, size = self._features(net, stage), self._batch_size
        if features is None:
            device = next(net.parameters()).device
            return stage, _over(stage, lambda: lazy_pairs(self.images, self.views, size, draw, device))
        return replace(stage, on_features=True), _over(stage, lambda: feature_pairs(features, size, draw))

    def _features(self, net: Network, stage: Stage) -> Features | None:
        """The features of views that the stage wants kept, if they fit."""
        if not stage.views_per_image:
            return None
        source = FeatureSource(
            self.images, self.views, stage.views_per_image, (self.seed, self.index, stage.name)
        )
        encoder, limit = net.get_submodule(stage.encoder), self.training.cache_bytes
        if source.bytes(encoder) > limit:
            return None
        chunks = self.training.chunks(self._batch_size)
        return self.cache.get(source, encoder, chunks.chunk if chunks else self._batch_size, limit)

    def _reply(self, net: Network, stage: Stage, task: Task, losses: list[float]) -> Update:
        update = Update(
            client=self.index,
            stage=stage.name,
            round=task.round,
            samples=len(self.images),
            loss=sum(losses) / len(losses) if losses else None,
            weights=self._bounded(detached(select(net.state_dict(), stage.shared)), task),
            extras=detached(stage.extras(net, self._plain(net))),
        )
        return update.packed() if task.half else update

    def _bounded(self, weights: State, task: Task) -> State:
        return weights if self.clip is None else clipped(weights, task.weights, self.clip)

    def _plain(self, net: Network) -> Iterator[Tensor]:
        """All images in order, without augmentation."""
        device = next(net.parameters()).device
        for start in range(0, len(self.images), PLAIN_BATCH):
            rows = np.arange(start, min(start + PLAIN_BATCH, len(self.images)))
            yield self.views.plain(to_device(self.images[rows], device))

    def _remember(
        self, net: Network, stage: Stage, memory: Memory, optimizer: torch.optim.Optimizer | None
    ) -> State:
        state = add_prefix("net", net.state_dict()) | add_prefix(f"memory.{stage.name}", memory)
        if self.training.keep_optimizer and optimizer is not None:
            state |= add_prefix(f"optimizer.{stage.name}", _moments(optimizer))
        return detached(state)


def _over(stage: Stage, epoch: Callable[[], Iterator[AnyPair]]) -> Iterator[AnyPair]:
    return (pair for _ in range(stage.epochs) for pair in epoch())


def _moments(optimizer: torch.optim.Optimizer) -> State:
    """What an optimiser has gathered, flat: "3.exp_avg" belongs to its fourth parameter."""
    gathered = optimizer.state_dict()["state"]
    return {
        f"{index}.{key}": value
        for index, values in gathered.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore(optimizer: torch.optim.Optimizer, moments: State) -> None:
    """Undoes `_moments`; the options stay those of the optimiser.

    Moments are laid out in memory as their parameters, which a fused step trusts; a file does not keep that.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gathered: dict[int, State] = {}
    for name, value in moments.items():
        index, key = name.split(".", 1)
        like = parameters[int(index)] if value.dim() else value  # the count of steps has no shape
        gathered.setdefault(int(index), {})[key] = torch.empty_like(like).copy_(value)  # steps write into it
    optimizer.load_state_dict({**optimizer.state_dict(), "state": gathered})
