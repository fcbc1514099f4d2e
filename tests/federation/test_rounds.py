import numpy as np
import pytest
import torch

from fedmcc.data import load_dataset
from fedmcc.federation.client import Client
from fedmcc.federation.engines import Engine
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Update
from fedmcc.methods.base import Aggregate, Stage
from fedmcc.methods.mcc import MCC
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.loop import Step, Training, trainable
from fedmcc.views import preset

HEAD = ("online.cluster_projector",)


def _net():
    encoder = ConvNetOptions(width=4).build(1, 8)
    net = MCC(projections=8).build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(1))
    return net


def _engine(shards, keep=False, kind=Embedded):
    images, training = load_dataset("digits", limit=60).images, Training(batch_size=8, keep_optimizer=keep)
    clients = [
        Client(index, images[rows], preset("digits"), training, seed=0) for index, rows in enumerate(shards)
    ]
    return kind(_net(), clients)


def _all_rounds(engine, clients, stage, progress=None):
    progress = progress or Progress(detached(_net().state_dict()))
    return [event for event in rounds(stage, progress, engine, clients) if isinstance(event, Round)]


def _stage(rounds=2):
    return MCC(rounds=rounds, epochs=1).stages()[0]


SHARDS = (slice(0, 10), slice(10, 34), slice(34, 60))


class Recording(Engine):
    """An engine that records the tasks and whose clients return the weights plus their index."""

    def __init__(self, order=1, extras=None):
        self.tasks, self.order, self.extras = [], order, extras or {}

    def run(self, stage, tasks):
        self.tasks.append({task.client: task for task in tasks})
        for task in tasks[:: self.order]:
            shared = {
                name: value + task.client for name, value in task.weights.items() if name.startswith(HEAD)
            }
            loss, samples = 0.1 * (task.client + 1), 10 + 7 * task.client
            yield Update(task.client, stage.name, task.round, samples, loss, shared, self.extras)

    def commit(self, accepted):
        self.committed = accepted


class Backwards(Embedded):
    """An engine that runs the tasks in reverse order."""

    def run(self, stage, tasks):
        return super().run(stage, tasks[::-1])


def _same(one, other):
    return all(torch.equal(one.progress.model[name], value) for name, value in other.progress.model.items())


def _head(rounds=3):
    return Stage(name="head", rounds=rounds, epochs=1, trained=HEAD, shared=HEAD, frozen=("online.encoder",))


def test_one_client_is_centralized_training():
    engine, stage, net = _engine([slice(0, 20)], keep=True), _stage(rounds=3), _net()
    images, views = load_dataset("digits", limit=20).images, preset("digits")
    optimizer = torch.optim.Adam(trainable(net, stage), 3e-4, fused=True)
    for number in (1, 2, 3):
        draw = generator(0, "train", 0, "joint", number)
        for rows in torch.randperm(20, generator=draw)[:16].split(8):
            batch = torch.from_numpy(images[rows.numpy()])
            optimizer.zero_grad()
            stage.loss(stage.represent(net, views(batch, draw), views(batch, draw))).backward()
            optimizer.step()
            net.update(momentum=0.99)
    model = _all_rounds(engine, [0], stage)[-1].progress.model
    assert all(
        torch.equal(model[name], value) for name, value in net.online.state_dict(prefix="online.").items()
    )


def test_the_global_model_is_the_average_by_number_of_images():
    (round,) = _all_rounds(_engine(SHARDS), [0, 1, 2], _stage(rounds=1))
    weights = np.array([10, 24, 26]) / 60
    for name in round.updates[0].weights:
        values = np.stack([update.weights[name].numpy().astype(np.float64) for update in round.updates])
        expected = values.max(axis=0) if "num_batches" in name else np.tensordot(weights, values, axes=1)
        np.testing.assert_allclose(round.progress.model[name].numpy(), expected, rtol=1e-6, atol=1e-8)


def test_parts_that_are_not_shared_do_not_change_at_the_server():
    rounds_ = _all_rounds(_engine(SHARDS), [0, 1, 2], _stage())
    before, after = _net().state_dict(), rounds_[-1].progress.model
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("target."))


def test_order_of_replies_does_not_matter():
    models = [_all_rounds(Recording(order), [0, 1, 2], _head())[-1] for order in (1, -1)]
    assert [update.client for update in models[1].updates] == [0, 1, 2]
    assert all(torch.equal(models[0].progress.model[n], v) for n, v in models[1].progress.model.items())


def test_order_in_which_clients_train_does_not_matter():
    engines = _engine(SHARDS), _engine(SHARDS, kind=Backwards)
    one, other = (_all_rounds(engine, [0, 1, 2], _stage())[-1] for engine in engines)
    assert _same(one, other)
    assert one.loss == other.loss


def test_bytes_are_those_of_every_shared_number():
    (round,) = _all_rounds(_engine(SHARDS), [0, 1, 2], _stage(rounds=1))
    each = 0
    for name, value in _net().state_dict().items():
        if name.startswith("online."):
            each += value.numel() * (8 if "num_batches" in name else 4)
    assert round.bytes_down == round.bytes_up == 3 * each
    assert round.traffic == dict.fromkeys(range(3), (each, each))


def test_frozen_parts_are_sent_once_to_each_client():
    engine = Recording()
    first, second, _ = _all_rounds(engine, [0, 1], _head())
    for client in (0, 1):
        names = [{name.split(".")[1] for name in tasks[client].weights} for tasks in engine.tasks]
        assert names == [{"encoder", "cluster_projector"}, {"cluster_projector"}, {"cluster_projector"}]
    assert first.bytes_down > second.bytes_down == second.bytes_up
    assert second.progress.holders == {"online.encoder": {0, 1}}


def test_a_client_that_joins_later_gets_the_frozen_parts_then():
    engine = Recording()
    (round,) = _all_rounds(engine, [0], _head(rounds=1))
    _all_rounds(engine, [0, 1], _head(rounds=2), round.progress)
    assert "online.encoder" not in {name.rsplit(".stages", 1)[0] for name in engine.tasks[1][0].weights}
    assert "online.encoder" in {name.rsplit(".stages", 1)[0] for name in engine.tasks[1][1].weights}


def _parts(tasks):
    return {name.split(".")[1] for name in tasks[0].weights}


@pytest.mark.parametrize(
    ("frozen", "sent"),
    [
        (("online.encoder",), {"cluster_projector"}),
        ((), {"cluster_projector"}),
        (
            ("online.encoder", "online.instance_projector"),
            {"instance_projector", "cluster_projector"},
        ),
    ],
)
def test_a_new_stage_sends_the_frozen_parts_that_a_client_does_not_hold(frozen, sent):
    engine = Recording()
    (old,) = _all_rounds(engine, [0], _head(rounds=1))
    other = Stage(name="other", rounds=1, epochs=1, trained=HEAD, shared=HEAD, frozen=frozen)
    (round,) = _all_rounds(engine, [0], other, old.progress)
    assert (round.progress.stage, round.progress.round) == ("other", 1)
    assert _parts(engine.tasks[1]) == sent


def test_parts_that_a_stage_between_did_not_freeze_are_sent_again():
    engine = Recording()
    (old,) = _all_rounds(engine, [0], _head(rounds=1))
    between = Stage(name="between", rounds=1, epochs=1, trained=HEAD, shared=HEAD)
    (middle,) = _all_rounds(engine, [0], between, old.progress)
    again = Stage(name="again", rounds=1, epochs=1, trained=HEAD, shared=HEAD, frozen=("online.encoder",))
    _all_rounds(engine, [0], again, middle.progress)
    assert _parts(engine.tasks[2]) == {"encoder", "cluster_projector"}


class Rewriting(Stage):
    """A stage whose server changes the frozen encoder."""

    def combine(self, updates, model):
        return Aggregate(
            {**super().combine(updates, model).weights, **select(model, ("online.encoder",))}, {}
        )


def test_frozen_parts_that_the_server_changed_are_sent_again():
    engine = Recording()
    stage = Rewriting(name="head", rounds=2, epochs=1, trained=HEAD, shared=HEAD, frozen=("online.encoder",))
    _all_rounds(engine, [0], stage)
    assert [_parts(tasks) for tasks in engine.tasks] == [{"encoder", "cluster_projector"}] * 2


def test_loss_of_a_round_is_the_mean_over_images():
    (round,) = _all_rounds(Recording(), [0, 1], _head(rounds=1))
    assert round.loss == pytest.approx((0.1 * 10 + 0.2 * 17) / 27)


def test_resuming_from_a_progress_gives_the_same_result():
    whole = _all_rounds(_engine(SHARDS), [0, 1, 2], _stage(rounds=3))
    engine = _engine(SHARDS)
    part = _all_rounds(engine, [0, 1, 2], _stage(rounds=1))
    rest = _all_rounds(engine, [0, 1, 2], _stage(rounds=3), part[-1].progress)
    assert [round.loss for round in part + rest] == [round.loss for round in whole]
    assert all(torch.equal(rest[-1].progress.model[n], v) for n, v in whole[-1].progress.model.items())
    assert _all_rounds(engine, [0, 1, 2], _stage(rounds=3), rest[-1].progress) == []


def test_steps_are_yielded_before_their_round():
    events = list(rounds(_stage(rounds=1), Progress(detached(_net().state_dict())), _engine(SHARDS), [0, 1]))
    assert [type(event) for event in events] == [Step] * (10 // 8 + 24 // 8) + [Round]


class Extra(Stage):
    """A stage whose server sends the number of updates with the next tasks."""

    def extras_error(self, update):
        return ""

    def combine(self, updates, model):
        return Aggregate(
            super().combine(updates, model).weights, {"count": torch.tensor(float(len(updates)))}
        )


def test_extras_of_the_server_are_sent_with_the_next_tasks_and_counted_as_traffic():
    stage = Extra(name="head", rounds=2, epochs=1, trained=HEAD, shared=HEAD)
    engine = Recording(extras={"mean": torch.zeros(5)})
    first, second = _all_rounds(engine, [0, 1], stage)
    assert [tasks[0].extras.get("count") for tasks in engine.tasks] == [None, 2.0]
    assert second.bytes_down - first.bytes_down == 2 * 4
    assert second.bytes_up - first.bytes_down == 2 * 5 * 4
