"""Every stage of every method and clustering, those that are off by default included, as test parameters.

A test that asks for the fixture `case` runs over all stages, one that asks for `training_case` over those
that train. Registering a method or a clustering is enough to have it tested.
"""

from dataclasses import fields
from typing import Any, NamedTuple

import pytest
import torch

from fedmcc.messages import Task
from fedmcc.methods import CLUSTERINGS, METHODS, Stage
from fedmcc.methods.inputs import Sight
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Network
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.chunked import StoredBatch

CLUSTERS = 4
IMAGES = 16  # of the client whose notes a built network has
BEFORE_CLUSTERING = "fedsimclr"  # a method without a cluster head


def with_all_stages(kind: type, norm: str) -> Any:
    """The entry with narrow layers, this normalisation, and every stage that an option can add."""
    options = {field.name: 32 for field in fields(kind) if type(field.default) is int and field.default > 64}
    options |= {field.name: norm for field in fields(kind) if field.name == "norm"}
    # Every image is confident: an untrained network has no image above a real threshold.
    options |= {field.name: 0.0 for field in fields(kind) if field.name == "confidence"}
    for field in fields(kind):
        if type(field.default) is int and field.default == 0:
            more = options | {field.name: 1}
            options = more if len(kind(**more).stages()) > len(kind(**options).stages()) else options
    return kind(**options)


class Case(NamedTuple):
    """One stage of a method, or of a clustering that follows a method."""

    registry: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} {self.registry} {self.stage('group').name}"

    def stage(self, norm: str) -> Stage:
        """The stage as the method or clustering declares it."""
        kinds: dict[str, Any] = METHODS if self.registry == "method" else CLUSTERINGS
        return with_all_stages(kinds[self.name], norm).stages()[self.number]

    def build(self, norm: str = "group") -> tuple[Network, Stage]:
        """A small network after it has received the first task of the stage."""
        encoder = ConvNetOptions(width=4, norm=norm).build(1, 8)
        is_method = self.registry == "method"
        method = with_all_stages(METHODS[self.name if is_method else BEFORE_CLUSTERING], norm)
        net = method.build(encoder, encoder.features, CLUSTERS)
        if not is_method:
            with_all_stages(CLUSTERINGS[self.name], norm).extend(net, encoder.features, CLUSTERS)
        initialise(net, torch.Generator().manual_seed(0))
        stage = self.stage(norm)
        shared = detached(select(net.state_dict(), stage.shared))
        stage.receive(net, Task(0, stage.name, 1, shared), {"samples": torch.tensor(IMAGES)})
        net.notes = stage.first_notes(net, IMAGES)
        return net, stage

    def batch(self, count: int, dtype: torch.dtype = torch.float32) -> StoredBatch:
        """What the stage sees of the first images of a client: random views, and their numbers."""
        draw, sees = torch.Generator().manual_seed(0), self.stage("group").sees
        rows = torch.arange(count)
        numbers = {
            Sight.ROW: rows,
            Sight.PARTNER_ROW: rows.flip(0)[:, None].repeat(1, max(1, sees.count(Sight.PARTNER))),
        }
        views = [sight for sight in sees if sight not in numbers]
        images = iter(torch.rand(len(views), count, 1, 8, 8, generator=draw, dtype=dtype))
        return StoredBatch(*(numbers[sight] if sight in numbers else next(images) for sight in sees))


CASES = [
    Case(registry, name, number)
    for registry, kinds in (("method", METHODS), ("clustering", CLUSTERINGS))
    for name, kind in kinds.items()
    for number in range(len(with_all_stages(kind, "group").stages()))
]


@pytest.fixture
def cases() -> list[Case]:
    """All stages, those of one entry in order."""
    return CASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run over all stages, or over those that train."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=str)
    if "training_case" in metafunc.fixturenames:
        training = [case for case in CASES if case.stage("group").trained]
        metafunc.parametrize("training_case", training, ids=str)
