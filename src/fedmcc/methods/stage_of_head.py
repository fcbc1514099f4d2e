"""A stage of one of several cluster heads, which sees the network as if that head were the only one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.centroids import HEAD, Statistics
from fedmcc.methods.extras import Additive
from fedmcc.numerics.state_dicts import State, add_prefix, strip_prefix


@dataclass(frozen=True, kw_only=True)
class StageOfHead(Statistics):
    """Passes everything on to a stage without training, with the names of its head translated."""

    inner: Stage
    number: int  # of the head

    @classmethod
    def wrap(cls, inner: Stage, number: int, label: str) -> "StageOfHead":
        """The stage for the head of this number; the label makes its name unique."""
        own = _own_head(number)
        shared, frozen = (
            tuple(part.replace(HEAD, own) for part in parts) for parts in (inner.shared, inner.frozen)
        )
        name = f"{label}-{inner.name}"
        return cls(name=name, rounds=inner.rounds, shared=shared, frozen=frozen, inner=inner, number=number)

    @property
    def smallest(self) -> int:
        """Number of images that a centroid must represent to be sent."""
        return getattr(self.inner, "smallest", 1)

    def first_notes(self, net: Any, count: int) -> State:
        """The notes of the inner stage."""
        with self._only_head(net):
            return self.inner.first_notes(net, count)

    def extras(self, net: Any, batches: Iterable[Tensor]) -> State:
        """The extras of the inner stage."""
        with self._only_head(net):
            return self.inner.extras(net, batches)

    def additive(self, weights: State) -> Mapping[str, Additive] | None:
        """Those of the inner stage."""
        return self.inner.additive(self._inside(weights))

    def extras_error(self, update: Update) -> str:
        """The judgement of the inner stage."""
        return self.inner.extras_error(replace(update, weights=self._inside(update.weights)))

    def combine(self, updates: Sequence[Update], model: State) -> Aggregate:
        """The server's step of the inner stage, by the same rule."""
        inner = replace(
            self.inner,
            average=self.average,
            samples_limit=self.samples_limit,
            equal_clients=self.equal_clients,
        )
        renamed = [replace(update, weights=self._inside(update.weights)) for update in updates]
        weights, extras = inner.combine(renamed, self._inside(model))
        changed = strip_prefix(HEAD, weights)
        return Aggregate(add_prefix(_own_head(self.number), changed), extras)

    def _inside(self, weights: State) -> State:
        """The weights of this head under the name of the only one, and all weights outside of heads."""
        others = {name: value for name, value in weights.items() if not name.startswith(f"{HEAD}.")}
        return {**others, **add_prefix(HEAD, strip_prefix(_own_head(self.number), weights))}

    @contextmanager
    def _only_head(self, net: Any) -> Iterator[None]:
        heads = net.online.cluster_projector
        net.online.cluster_projector = heads.heads[self.number]
        try:
            yield
        finally:
            net.online.cluster_projector = heads


def _own_head(number: int) -> str:
    return f"{HEAD}.heads.{number}"
