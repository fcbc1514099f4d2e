"""Attacks of one hostile client on a federation, and an engine in which it takes part."""

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedmcc.federation.engines.base import Engine
from fedmcc.federation.update_checks import MAX_SAMPLES
from fedmcc.messages import Task, Update
from fedmcc.methods.base import Stage
from fedmcc.numerics.matrices import from_upper_triangle, upper_triangle
from fedmcc.numerics.randomness import derive
from fedmcc.numerics.state_dicts import State

HOSTILE = 0
SCALE = 9.9  # of a change; ten times the median is refused
SHIFT = 0.5  # standard deviations of the other clients' weights


class Scene(NamedTuple):
    """What the hostile client knows: its own honest update, those of the others, and the sent weights."""

    own: Update
    others: Sequence[Update]
    sent: State
    draw: torch.Generator


Attack = Callable[[Scene], Update | None]  # None: no answer


def change(scene: Scene, new: Callable[[str, Tensor], Tensor]) -> Update:
    """The hostile update with each floating-point tensor of its weights replaced; variances stay valid."""
    weights = dict(scene.own.weights)
    for name, value in scene.own.weights.items():
        if value.is_floating_point():
            weights[name] = new(name, value).to(value.dtype)
        if name.endswith("running_var"):  # the checks refuse negative ones
            weights[name] = weights[name].clamp_min(0)
    return replace(scene.own, weights=weights)


def flip(times: float) -> Attack:
    """The change from the sent weights, reversed and multiplied."""
    return lambda scene: change(
        scene, lambda name, value: scene.sent[name] - times * (value - scene.sent[name])
    )


def scale(scene: Scene) -> Update:
    """The change from the sent weights, almost as large as the checks admit."""
    return change(scene, lambda name, value: scene.sent[name] + SCALE * (value - scene.sent[name]))


def noise(scene: Scene) -> Update:
    """Normal noise with the median norm of the other clients' changes."""
    noises = {
        name: torch.randn(value.shape, generator=scene.draw)
        for name, value in scene.own.weights.items()
        if value.is_floating_point()
    }
    length = sum(value.square().sum().item() for value in noises.values()) ** 0.5
    typical = statistics.median(distance(update.weights, scene.sent) for update in scene.others)
    return change(scene, lambda name, _: scene.sent[name] + typical / length * noises[name])


def constant(scene: Scene) -> Update:
    """Weights that all move by the same amount, as far as the other clients' weights move."""
    size = sum(value.numel() for value in scene.own.weights.values() if value.is_floating_point())
    typical = statistics.median(distance(update.weights, scene.sent) for update in scene.others)
    return change(scene, lambda name, _: scene.sent[name] + typical / size**0.5)


def nothing(scene: Scene) -> Update:
    """The sent weights, unchanged."""
    return change(scene, lambda name, _: scene.sent[name])


def shift(scene: Scene) -> Update:
    """The others' mean minus a part of their deviation: "a little is enough" (Baruch et al. 2019)."""

    def moved(name: str, _: Tensor) -> Tensor:
        values = torch.stack([update.weights[name] for update in scene.others])
        return values.mean(dim=0) - SHIFT * values.std(dim=0)

    return change(scene, moved)


def claim(scene: Scene) -> Update:
    """An honest update of an enormous number of images."""
    times = MAX_SAMPLES // scene.own.samples
    extras = {  # all extras but the centroids are sums over images
        name: value if name == "centroids" else value * times for name, value in scene.own.extras.items()
    }
    return replace(scene.own, samples=times * scene.own.samples, extras=extras)


def extras_random(scene: Scene) -> Update:
    """Moments of one random direction, random centroids and random affinities, all of valid form."""
    shape = (scene.own.samples, len(scene.own.extras.get("histogram", ())))
    p = (3 * torch.randn(shape, generator=scene.draw, dtype=torch.float64)).softmax(dim=1)

    def drawn(name: str, value: Tensor) -> Tensor:
        if name == "affinity":
            return upper_triangle(p.T @ p)
        if name == "histogram":
            return p.sum(dim=0)
        rows = normalize(torch.randn(value.shape, generator=scene.draw), dim=1)
        return rows if name == "centroids" else torch.outer(rows[0], rows[0]) * value.trace()

    return altered(scene, drawn, zero=("first",))


def extras_reversed(scene: Scene) -> Update:
    """Moments of the directions without variance, opposite centroids, and affinities of other prototypes."""
    order = torch.randperm(len(scene.own.extras.get("histogram", ())), generator=scene.draw)

    def drawn(name: str, value: Tensor) -> Tensor:
        if name == "centroids":
            return -value
        if name == "affinity":
            return upper_triangle(from_upper_triangle(value)[order][:, order])
        if name == "histogram":
            return value[order]
        variance, directions = torch.linalg.eigh(value.double())
        return (directions * variance.flip(0).clamp_min(0)) @ directions.T

    return altered(scene, drawn, zero=("first",))


def extras_scaled(scene: Scene) -> Update:
    """Moments, centroids and affinities a thousand times too large, which the checks refuse."""
    return altered(scene, lambda _, value: 1000 * value)


def altered(scene: Scene, new: Callable[[str, Tensor], Tensor], zero: Collection[str] = ()) -> Update:
    """The hostile update with other moments, centroids and affinities."""
    attacked = {"second", "centroids", "affinity", "histogram"}
    extras = {
        name: new(name, value).to(value.dtype).contiguous()
        if name in attacked
        else value * (name not in zero)
        for name, value in scene.own.extras.items()
    }
    return replace(scene.own, extras=extras)


ATTACKS: dict[str, Attack] = {
    "none": lambda scene: scene.own,
    "sign flipped ×9": flip(9.0),
    "sign flipped ×1": flip(1.0),
    "claims as many images as possible": claim,
    "noise at the median norm": noise,
    "extras random": extras_random,
    "extras reversed": extras_reversed,
    "scaled ×9.9": scale,
    "a little is enough": shift,
    "extras ×1000": extras_scaled,
    "constant change": constant,
    "no change": nothing,
    "does not answer": lambda scene: None,
}


@dataclass(frozen=True, eq=False)
class AttackedEngine(Engine):
    """An engine whose first client is hostile; its own state stays that of honest training."""

    engine: Engine
    attack: Attack
    seed: int

    @property
    def members(self) -> list[int]:
        """Indices of all clients."""
        return self.engine.members

    def run(self, stage: Stage, tasks: Sequence[Task]) -> Iterator[Any]:
        """Run the tasks honestly, then replace the hostile update."""
        updates = [event for event in self.engine.run(stage, tasks) if isinstance(event, Update)]
        own = next(update for update in updates if update.client == HOSTILE)
        others = [update for update in updates if update.client != HOSTILE]
        draw = torch.Generator().manual_seed(derive(self.seed, "attack", stage.name, own.round))
        hostile = self.attack(Scene(own, others, tasks[0].weights, draw))
        yield from (others if hostile is None else [hostile, *others])

    def commit(self, accepted: Collection[int]) -> None:
        """Keep the states of the accepted clients and of the hostile one."""
        self.engine.commit({*accepted, HOSTILE})


def distance(weights: State, sent: State) -> float:
    """Euclidean distance of the floating-point tensors."""
    changes = (value.double() - sent[name] for name, value in weights.items() if value.is_floating_point())
    return sum(change.square().sum().item() for change in changes) ** 0.5
