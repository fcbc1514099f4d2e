"""A client: its images, and how it turns a task into an update."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from fedmcc.data.base import Images
from fedmcc.data.copies import first_of_copies
from fedmcc.data.partition import Rows
from fedmcc.federation.privacy import clipped
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Memory, Stage
from fedmcc.methods.inputs import Overview
from fedmcc.networks.inference import device_of, eval_mode
from fedmcc.networks.momentum import Network
from fedmcc.numerics.randomness import derive, generator
from fedmcc.numerics.state_dicts import State, add_prefix, copy_into, detached, select, strip_prefix
from fedmcc.training.batches import BatchSource, to_device
from fedmcc.training.chunked import Batch, StoredBatch, split
from fedmcc.training.feature_cache import FeatureCache, Features, FeatureSource, feature_pairs
from fedmcc.training.feature_files import FeatureFile
from fedmcc.training.loop import Step, Training, train, trainable
from fedmcc.training.timing import timed
from fedmcc.training.torch_setup import autocast_dtype
from fedmcc.views import Views

INFERENCE_BATCH = 512  # images per batch without augmentation
NOTES = "notes."  # start of their names in a Memory
AnyBatch = Batch | tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Client:
    """One owner of images; its state between rounds is passed in and returned, not stored in it."""

    index: int
    images: Images
    views: Views
    training: Training
    seed: int
    clip: float | None = None  # largest Euclidean norm of an update; None: any
    cache: FeatureCache = field(default_factory=FeatureCache)  # shared by all clients of a process
    features: FeatureFile | None = None  # of the images without augmentation, by a frozen encoder
    labelled: Rows | None = None  # numbers of the images with a label, if others have none (D16)
    unlabelled: UInt8[np.ndarray, "m c h w"] | None = None  # images that only `Stage.on_unlabelled` uses

    def answer(
        self, net: Network, stage: Stage, task: Task, state: State
    ) -> Generator[Step, None, tuple[Update, State]]:
        """ClientLocalTraining of Algorithms 1 and 2; returns the update and the new state.

        `state` is loaded into `net` first, so that clients can share one network.
        """
        if self.labelled is not None and (stage.labelled_only or stage.on_unlabelled):
            update, new = yield from self._with_labels.answer(net, stage, task, state)
            return replace(update, samples=len(self.images)), new
        with timed("receive"):
            task = task.unpacked()
            copy_into(net, strip_prefix("net", state))
            memory = self._memory(stage, state)
            stage.receive(net, task, memory)
            net.notes = _notes(net, stage, memory)
            net.copy_of = None if stage.trained else self._copy_of
        stage = replace(stage, precision=autocast_dtype(self.training.precision))
        parameters = trainable(net, stage)
        optimizer, losses = None, []
        if parameters:
            optimizer = self._optimizer(parameters, stage, task, state)
            for loss in self._train(net, stage, task, optimizer):
                losses.append(loss)
                yield Step(self.index, loss, self._batch_size)
        elif stage.epochs:
            stage.observe(net, self._seen(net, stage, task))
        with timed("reply"):
            return self._update(net, stage, task, losses), self._state(net, stage, memory, optimizer)

    @cached_property
    def _with_labels(self) -> "Client":
        """This client with those of its images that have a label."""
        assert self.labelled is not None
        features = None if self.features is None else self.features.take(self.labelled)
        images, others = (
            _take(self.images, rows)
            for rows in (self.labelled, np.setdiff1d(np.arange(len(self.images)), self.labelled))
        )
        return replace(self, images=images, labelled=None, features=features, unlabelled=others)

    @cached_property
    def _copy_of(self) -> Tensor:
        """For each image, the number of the first image of equal bytes."""
        return torch.from_numpy(first_of_copies(self.images))

    @property
    def images_per_epoch(self) -> int:
        """Number of images trained on in an epoch; an incomplete batch is dropped."""
        return len(self.images) // self._batch_size * self._batch_size

    @property
    def _batch_size(self) -> int:
        return min(self.training.batch_size, len(self.images))

    def _train(
        self, net: Network, stage: Stage, task: Task, optimizer: torch.optim.Optimizer
    ) -> Iterator[float]:
        """Train for a round, then on images without a label if the stage names a stage for them."""
        chunks = self.training.chunks(self._batch_size)
        stage_on_batches, batches = self._batches(net, stage, task)
        yield from train(net, stage_on_batches, batches, optimizer, chunks)
        if stage.on_unlabelled is not None and self.unlabelled is not None:
            others = replace(self, images=self.unlabelled, unlabelled=None, features=None)
            second = replace(stage.on_unlabelled, precision=stage.precision)
            yield from others._train(net, second, task, optimizer)

    def _seen(self, net: Network, stage: Stage, task: Task) -> Iterator[tuple[Tensor, ...]]:
        """What a stage sees of the batches of a round, at most a chunk at once."""
        chunks = self.training.chunks(self._batch_size)
        size = chunks.chunk if chunks else self._batch_size
        for batch in self._batches(net, stage, task)[1]:
            whole = StoredBatch(*batch) if isinstance(batch, tuple) else batch
            for rows in split(len(whole), size):
                yield whole[rows]

    def _optimizer(
        self, parameters: list[nn.Parameter], stage: Stage, task: Task, state: State
    ) -> torch.optim.Optimizer:
        """The optimiser of a round, with the moments of the last round if they are kept."""
        progress = (task.round - 1) / stage.rounds
        optimizer = self.training.build_optimizer(parameters, stage.learning_rate_factor, progress)
        if self.training.keep_optimizer:
            _restore_moments(optimizer, strip_prefix(f"optimizer.{stage.name}", state))
        return optimizer

    def _memory(self, stage: Stage, state: State) -> Memory:
        """What the client stored in the last round of the stage, its number of images and steps in a round.

        Notes about another number of images, which a site may have changed, are left out.
        """
        memory, samples = strip_prefix(f"memory.{stage.name}", state), torch.tensor(len(self.images))
        if not samples.equal(memory.get("samples", samples)):
            memory = {name: value for name, value in memory.items() if not name.startswith(NOTES)}
        steps = stage.epochs * (len(self.images) // self._batch_size)
        return {**memory, "samples": samples, "steps": torch.tensor(steps)}

    def _batches(self, net: Network, stage: Stage, task: Task) -> tuple[Stage, Iterator[AnyBatch]]:
        """The batches of a round, of images or of cached features, and the stage set up for them."""
        draw = generator(self.seed, "train", self.index, stage.name, task.round)
        features, size = self._features(net, stage), self._batch_size
        if features is not None:
            epochs = self._epochs(net, stage, task, lambda: feature_pairs(features, size, draw))
            return replace(stage, on_features=True), epochs
        source = BatchSource(self.images, self.views, size, device_of(net), self.features)
        return stage, self._epochs(net, stage, task, lambda: source.epoch(stage.sees, net.notes, draw))

    def _epochs(
        self, net: Network, stage: Stage, task: Task, epoch: Callable[[], Iterator[AnyBatch]]
    ) -> Iterator[AnyBatch]:
        """The batches of all epochs; the stage prepares each epoch."""
        for number in range(stage.epochs):
            place = ("prepare", self.index, stage.name, task.round, number)
            overview = Overview(
                batches=lambda: self._plain_batches(net),
                epoch=(task.round - 1) * stage.epochs + number,
                epochs=stage.rounds * stage.epochs,
                seed=derive(self.seed, *place),
            )
            with timed("prepare"), eval_mode(net), torch.no_grad():
                stage.prepare(net, overview)
            yield from epoch()

    def _features(self, net: Network, stage: Stage) -> Features | None:
        """Cached features of the views, if the stage uses them and they fit into the cache."""
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

    def _update(self, net: Network, stage: Stage, task: Task, losses: list[float]) -> Update:
        extras = detached(stage.extras(net, self._plain_batches(net)))  # first: it may change shared buffers
        update = Update(
            client=self.index,
            stage=stage.name,
            round=task.round,
            samples=len(self.images),
            loss=sum(losses) / len(losses) if losses else None,
            weights=self._clip(detached(select(net.state_dict(), stage.shared)), task),
            extras=extras,
        )
        return update.packed() if task.half else update

    def _clip(self, weights: State, task: Task) -> State:
        return weights if self.clip is None else clipped(weights, task.weights, self.clip)

    def _plain_batches(self, net: Network) -> Iterator[Tensor]:
        """Batches of all images in order, without augmentation, or of their features if these are known."""
        device = device_of(net)
        for start in range(0, len(self.images), INFERENCE_BATCH):
            rows = np.arange(start, min(start + INFERENCE_BATCH, len(self.images)))
            if self.features is not None:
                yield self.features.read(rows).to(device)
            else:
                yield self.views.plain(to_device(self.images[rows], device))

    def _state(
        self, net: Network, stage: Stage, memory: Memory, optimizer: torch.optim.Optimizer | None
    ) -> State:
        kept = {name: value for name, value in memory.items() if not name.startswith(NOTES)}
        kept |= add_prefix("notes", net.notes)
        state = add_prefix("net", net.state_dict()) | add_prefix(f"memory.{stage.name}", kept)
        if self.training.keep_optimizer and optimizer is not None:
            state |= add_prefix(f"optimizer.{stage.name}", _moments(optimizer))
        return detached(state)


def _take(images: UInt8[np.ndarray, "n c h w"], rows: Rows) -> UInt8[np.ndarray, "m c h w"]:
    """The images of these ascending rows; consecutive ones are not copied, they may be mapped from disk."""
    consecutive = len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1
    taken: Images = images[int(rows[0]) : int(rows[-1]) + 1] if consecutive else images[rows]
    return taken


def _notes(net: Network, stage: Stage, memory: Memory) -> State:
    """The notes of the last round, or the first ones; copies, because training writes into them."""
    notes = strip_prefix("notes", memory) or stage.first_notes(net, int(memory["samples"]))
    return {name: value.to(device_of(net), copy=True) for name, value in notes.items()}


def _moments(optimizer: torch.optim.Optimizer) -> State:
    """The tensors of an optimiser's state, by name: "3.exp_avg" belongs to its fourth parameter."""
    by_parameter = optimizer.state_dict()["state"]
    return {
        f"{index}.{key}": value
        for index, values in by_parameter.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore_moments(optimizer: torch.optim.Optimizer, moments: State) -> None:
    """Load the result of `_moments` into an optimiser, whose options do not change.

    Moments get the memory layout of their parameters, which a fused step requires and files do not store.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_parameter: dict[int, State] = {}
    for name, value in moments.items():
        index, key = name.split(".", 1)
        like = parameters[int(index)] if value.dim() else value  # the step count is a scalar
        # A copy, because the optimiser writes into it.
        by_parameter.setdefault(int(index), {})[key] = torch.empty_like(like).copy_(value)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": by_parameter})
