"""Notes: what a client stores about its images stays with this client, from round to round of a stage."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedmcc.data.synthetic import Synthetic
from fedmcc.federation.client import Client
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.messages import Task
from fedmcc.methods.base import Stage
from fedmcc.methods.inputs import PLAIN, ROW
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.networks.momentum import Branch, Network
from fedmcc.numerics.state_dicts import add_prefix, detached, select
from fedmcc.training.loop import Training
from fedmcc.views import preset

COUNTS = (20, 12)  # images of the two clients
EPOCHS, ROUNDS = 2, 3


class Outputs(NamedTuple):
    features: Tensor
    rows: Tensor


@dataclass(frozen=True, kw_only=True)
class Counting(Stage):
    """Notes that count: how often each image was seen, and the epochs that were prepared."""

    name: str = "counting"
    rounds: int = ROUNDS
    epochs: int = EPOCHS
    trained: tuple[str, ...] = ("online",)
    shared: tuple[str, ...] = ("online",)
    sees: tuple = (PLAIN, ROW)

    def first_notes(self, net, count):
        return {"seen": torch.zeros(count, dtype=torch.int64), "epochs": torch.empty(0, dtype=torch.int64)}

    def prepare(self, net, overview):
        assert not any(module.training for module in net.modules())
        assert not torch.is_grad_enabled()
        assert len(overview.features(net.online.encoder)) == len(net.notes["seen"])
        net.notes["epochs"] = torch.cat([net.notes["epochs"], torch.tensor([overview.epoch])])

    def represent(self, net, images, rows):
        return Outputs(net.online.encoder(images), rows)

    def loss(self, outputs):
        return outputs.features.square().mean()

    def after_step(self, net, outputs):
        net.notes["seen"][outputs.rows] += 1


def _clients(seed=0):
    images = Synthetic(samples=sum(COUNTS), size=8, channels=1).load().images
    training, views = Training(batch_size=4), preset("digits")
    parts = images[: COUNTS[0]], images[COUNTS[0] :]
    return [Client(index, part, views, training, seed) for index, part in enumerate(parts)]


def _net(norm="batch"):
    net = Network(Branch(ConvNetOptions(width=2, norm=norm).build(1, 8)))
    initialise(net, torch.Generator().manual_seed(0))
    return net


def _tasks(net, number):
    weights = detached(select(net.state_dict(), ("online",)))
    return [Task(client, "counting", number, weights) for client in range(2)]


def _notes(engine, client):
    state, start = engine.states[client], "memory.counting.notes."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def _round(engine, stage, number, accepted=(0, 1)):
    replies = list(engine.run(stage, _tasks(engine.net, number)))
    engine.states.commit(accepted)
    return [reply for reply in replies if hasattr(reply, "weights")]


def test_notes_stay_with_their_client_from_round_to_round_and_prepare_sees_every_epoch():
    engine = Embedded(_net(), _clients())
    for number in range(1, ROUNDS + 1):
        _round(engine, Counting(), number)
        for client, count in enumerate(COUNTS):
            notes = _notes(engine, client)
            assert notes["seen"].tolist() == [number * EPOCHS] * count
            assert notes["epochs"].tolist() == list(range(number * EPOCHS))


def test_a_refused_update_leaves_the_notes_as_they_were():
    engine = Embedded(_net(), _clients())
    _round(engine, Counting(), 1)
    before = {name: value.clone() for name, value in _notes(engine, 1).items()}
    _round(engine, Counting(), 2, accepted=(0,))
    after = _notes(engine, 1)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert _notes(engine, 0)["seen"].tolist() == [2 * EPOCHS] * COUNTS[0]


def test_nothing_of_the_notes_travels():
    engine = Embedded(_net(), _clients())
    for update in _round(engine, Counting(), 1):
        sent = {**update.weights, **update.extras}
        assert not any("notes" in name or "seen" in name for name in sent)
        assert not any(COUNTS[update.client] in value.shape for value in sent.values())


class Forgetful(Counting):
    """Preparing writes nothing and training stops, to see what preparing alone changes."""

    def prepare(self, net, overview):
        self.record(net)
        super().prepare(net, overview)

    def represent(self, net, images, rows):
        self.record(net)
        raise StopIteration

    def record(self, net):
        modes = [module.training for module in net.modules()]
        RECORDED.append((modes, detached(net.state_dict())))


RECORDED: list = []


def test_preparing_leaves_modes_and_running_statistics_as_they_are():
    RECORDED.clear()
    net, stage = _net(), Forgetful(frozen=("online.encoder.stages.0",))
    modes = [True] * len(list(net.modules()))
    with pytest.raises(RuntimeError):
        list(_clients()[0].answer(net, stage, _tasks(net, 1)[0], {}))
    (in_prepare, before), (in_training, after) = RECORDED
    assert not any(in_prepare)
    frozen = set(net.online.encoder.stages[0].modules())
    assert in_training == [
        mode and module not in frozen for mode, module in zip(modes, net.modules(), strict=True)
    ]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_notes_about_another_number_of_images_are_not_used():
    net, stage, (client, _) = _net(), Counting(), _clients()
    state = add_prefix("net", detached(net.state_dict()))
    for images, number in ((client.images, 1), (client.images[:-4], 2)):
        answer = replace(client, images=images).answer(net, stage, _tasks(net, number)[0], state)
        while True:
            try:
                next(answer)
            except StopIteration as end:
                _, state = end.value
                break
        assert state["memory.counting.notes.seen"].tolist() == [EPOCHS] * len(images)


def test_a_stage_that_caches_features_must_see_two_views():
    assert Counting(views_per_image=2, sees=Stage.sees).views_per_image == 2
    with pytest.raises(ValueError, match=r"must see \(VIEW, VIEW\)"):
        Counting(views_per_image=2)


def test_lower_precision_leaves_integers_as_they_are():
    net, stage = _net(), replace(Counting(), precision=torch.bfloat16)
    rows = torch.tensor([3, 2**40])
    outputs = stage.outputs(net, torch.rand(2, 1, 8, 8), rows)
    assert (outputs.features.dtype, outputs.rows.dtype) == (torch.float32, torch.int64)
    assert torch.equal(outputs.rows, rows)


def test_notes_are_no_part_of_a_state_dict():
    net = _net()
    names = set(net.state_dict())
    net.notes = {"seen": torch.zeros(5)}
    assert isinstance(net, nn.Module)
    assert set(net.state_dict()) == names
