from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data import load_dataset
from fedmcc.federation.client import Client
from fedmcc.losses import Quartet, momentum_contrast, nt_xent
from fedmcc.messages import Task
from fedmcc.methods.centroids import HEAD
from fedmcc.numerics.randomness import generator
from fedmcc.numerics.state_dicts import add_prefix, detached, select
from fedmcc.runs.build import _clients, build_network
from fedmcc.runs.checkpoints import load_state, save_state
from fedmcc.runs.resolve import resolve, stages

SEED, BATCH, EPOCHS = 5, 8, 2


def _setup(optimizer="adam", keep=True, method="mcc", clustering=None, **fields):
    images = load_dataset("digits", limit=26)
    table = {
        "clusters": 3,
        "seed": SEED,
        "device": "cpu",
        "threads": 1,
        "method": {"name": method, "epochs": EPOCHS, **fields},
        "clustering": {"name": "none"} if clustering is None else {"name": "mcc", **clustering},
        "encoder": {"width": 4},
        "training": {
            "batch_size": BATCH,
            "optimizer": optimizer,
            "keep_optimizer": keep,
            "learning_rate": 0.01,
        },
    }
    config = resolve(parse(table), images)
    return config, Client(0, images.images, config.views, config.training, SEED), build_network(config, 1)


def _answer(client, net, stage, task, state):
    steps, answer = [], client.answer(net, stage, task, state)
    while True:
        try:
            steps.append(next(answer))
        except StopIteration as end:
            return (*end.value, steps)


def _rounds(config, client, net, count, keep_file=None):
    """Rounds of a single client, whose update is the next global model."""
    (stage,) = config.method.stages()
    weights = detached(select(net.state_dict(), stage.shared))
    state = add_prefix("net", detached(net.state_dict()))
    for number in range(1, count + 1):
        update, state, _ = _answer(client, net, stage, Task(0, stage.name, number, weights), state)
        weights = update.weights
        if keep_file:
            save_state(keep_file, state)
            state = load_state(keep_file)
    return state


def _by_hand(config, client, optimizer_of_round):
    """Centralized MCC as a plain loop: forward passes, an optimiser step, the moving average."""
    net, (stage,) = build_network(config, 1).train(), config.method.stages()
    optimizer = None
    for number in (1, 2):
        optimizer = optimizer_of_round(optimizer, net.online.parameters())
        draw = generator(SEED, "train", 0, "joint", number)
        for _ in range(EPOCHS):
            order = torch.randperm(len(client.images), generator=draw)
            for rows in order[: 3 * BATCH].split(BATCH):
                batch = torch.from_numpy(client.images[rows.numpy()])
                a, b = config.views(batch, draw), config.views(batch, draw)
                optimizer.zero_grad()
                stage.loss(stage.represent(net, a, b)).backward()
                optimizer.step()
                with torch.no_grad():
                    for slow, fast in zip(net.target.parameters(), net.online.parameters(), strict=True):
                        slow.lerp_(fast, 1 - 0.99)
    return net.state_dict()


def _same(state, expected):
    return all(torch.equal(state[f"net.{name}"], value) for name, value in expected.items())


def _adam(_, parameters):
    return torch.optim.Adam(parameters, 0.01, fused=True)


def _sgd(_, parameters):
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


def _rmsprop(_, parameters):
    return torch.optim.RMSprop(parameters, 0.01, 0.9)


@pytest.mark.parametrize(("name", "fresh"), [("adam", _adam), ("sgd", _sgd), ("rmsprop", _rmsprop)])
def test_with_a_kept_optimiser_two_rounds_are_one_continuous_training(name, fresh):
    config, client, net = _setup(name, keep=True)
    expected = _by_hand(config, client, lambda old, parameters: old or fresh(None, parameters))
    assert _same(_rounds(config, client, net, 2), expected)


@pytest.mark.parametrize(("name", "fresh"), [("adam", _adam), ("sgd", _sgd)])
def test_without_keep_optimizer_every_round_starts_with_a_new_one(name, fresh):
    config, client, net = _setup(name, keep=False)
    assert _same(_rounds(config, client, net, 2), _by_hand(config, client, fresh))


def test_keeping_the_optimiser_changes_the_result():
    states = [_rounds(*_setup(keep=keep), 2) for keep in (True, False)]
    assert not torch.equal(
        states[0]["net.online.encoder.stages.0.0.weight"], states[1]["net.online.encoder.stages.0.0.weight"]
    )
    assert not any(name.startswith("optimizer.") for name in states[1])


def test_a_state_saved_to_a_file_continues_bit_identically(tmp_path):
    straight = _rounds(*_setup(), 3)
    saved = _rounds(*_setup(), 3, keep_file=tmp_path / "client.safetensors")
    assert saved.keys() == straight.keys()
    assert all(torch.equal(saved[name], straight[name]) for name in straight)


@pytest.mark.parametrize("target", ["keep", "share"])
def test_an_answer_carries_exactly_what_is_declared_shared(target):
    config, client, net = _setup(target=target)
    (stage,) = config.method.stages()
    weights = detached(select(net.state_dict(), stage.shared))
    update, _, _ = _answer(client, net, stage, Task(0, "joint", 4, weights), {})
    starts = ("online.", "target.") if target == "share" else ("online.",)
    assert set(update.weights) == {name for name in net.state_dict() if name.startswith(starts)}
    assert (update.client, update.stage, update.round, update.samples, update.extras) == (
        0,
        "joint",
        4,
        26,
        {},
    )


def test_the_reported_loss_is_the_mean_of_the_steps():
    config, client, net = _setup()
    (stage,) = config.method.stages()
    weights = detached(select(net.state_dict(), stage.shared))
    update, _, steps = _answer(client, net, stage, Task(0, "joint", 1, weights), {})
    assert len(steps) == EPOCHS * (26 // BATCH)
    assert update.loss == pytest.approx(np.mean([step.loss for step in steps]))
    assert all(step.samples == BATCH and step.client == 0 for step in steps)
    assert client.images_per_epoch == 24


def test_an_answer_depends_on_nothing_but_task_and_state():
    """The network may still have the weights of another client."""
    config, client, net = _setup()
    (stage,) = config.method.stages()
    state = add_prefix("net", detached(net.state_dict()))
    task = Task(0, "joint", 1, detached(select(net.state_dict(), stage.shared)))
    first, *_ = _answer(client, net, stage, task, state)
    again, *_ = _answer(client, net, stage, task, state)
    assert first.loss == again.loss
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)


def test_answering_does_not_change_the_task_or_the_old_state():
    config, client, net = _setup()
    (stage,) = config.method.stages()
    state = add_prefix("net", detached(net.state_dict()))
    task = Task(0, "joint", 1, detached(select(net.state_dict(), stage.shared)))
    before = detached(state | add_prefix("task", task.weights))
    _, new, _ = _answer(client, net, stage, task, state)
    kept = detached(new)
    _answer(client, net, stage, replace(task, round=2), new)
    assert all(
        torch.equal(before[name], value) for name, value in (state | add_prefix("task", task.weights)).items()
    )
    assert all(torch.equal(kept[name], new[name]) for name in new)


def test_a_client_has_no_place_for_labels():
    assert {field.name for field in fields(Client)} == {
        "index",
        "images",
        "views",
        "training",
        "seed",
        "clip",
        "cache",
        "features",
        "labelled",  # which images have a label, not which label (D16)
        "unlabelled",  # the images of the others
    }


def test_a_client_with_fewer_images_than_a_batch_trains_on_all_of_them():
    config, client, net = _setup()
    small = replace(client, images=client.images[:5])
    (stage,) = config.method.stages()
    task = Task(0, "joint", 1, detached(select(net.state_dict(), stage.shared)))
    _, _, steps = _answer(small, net, stage, task, {})
    assert [step.samples for step in steps] == [5] * EPOCHS


@pytest.mark.parametrize(("round", "share"), [(1, 1.0), (3, 0.5)])
def test_a_kept_optimiser_follows_the_schedule(round, share):
    """The first step of plain SGD is the learning rate times the gradient."""
    changes = []
    for schedule in ("constant", "cosine"):
        config, client, net = _setup("sgd", rounds=4)
        training = replace(config.training, schedule=schedule, sgd_momentum=0.0, batch_size=26)
        (stage,) = config.method.stages()
        stage = replace(stage, epochs=1)
        before = detached(select(net.state_dict(), stage.trained))
        state = add_prefix("net", detached(net.state_dict()))
        task = Task(0, stage.name, round, before)
        after = _answer(replace(client, training=training), net, stage, task, state)[0].weights
        changes.append(
            torch.cat([(after[name] - before[name]).flatten() for name in before if "bias" in name])
        )
    torch.testing.assert_close(changes[1], share * changes[0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("unlabelled", [False, True])
def test_a_stage_can_leave_out_images_without_a_label(unlabelled):
    config, client, net = _setup(
        method="fedmcc", clustering={"epochs": 1, "views_per_image": 0, "unlabelled": unlabelled}
    )
    first, second = stages(config)
    rows = np.arange(2, 18)
    mixed, alone = replace(client, labelled=rows), replace(client, images=client.images[rows])
    state = add_prefix("net", detached(net.state_dict()))
    for stage, left_out in ((first, False), (second, not unlabelled)):
        task = Task(0, stage.name, 1, detached(select(net.state_dict(), (*stage.shared, *stage.frozen))))
        update, _, steps = _answer(mixed, net, stage, task, state)
        expected, _, _ = _answer(alone if left_out else client, net, stage, task, state)
        assert len(steps) == (len(rows) if left_out else 26) // BATCH * stage.epochs
        assert update.samples == 26  # as the server knows the client
        assert all(torch.equal(update.weights[name], value) for name, value in expected.weights.items())


@pytest.mark.parametrize("rows", [np.arange(16), np.arange(0, 26, 2)])
@pytest.mark.parametrize("method", ["cc", "mcc"])
def test_images_without_a_label_train_the_instances_after_those_with_one(method, rows):
    config, client, net = _setup("sgd", method=method, unlabelled=False, projections=4)
    (stage,) = config.method.stages()
    mixed, alone = replace(client, labelled=rows), replace(client, images=client.images[rows])
    task = Task(0, stage.name, 1, detached(select(net.state_dict(), stage.shared)))
    state = add_prefix("net", detached(net.state_dict()))
    update, _, steps = _answer(mixed, net, stage, task, state)
    expected, _, first = _answer(alone, net, stage, task, state)
    assert len(first) == len(rows) // BATCH * EPOCHS
    assert len(steps) == len(first) + (26 - len(rows)) // BATCH * EPOCHS
    equal = {name for name, value in expected.weights.items() if torch.equal(update.weights[name], value)}
    assert equal == {name for name in expected.weights if name.startswith(HEAD)}


@pytest.mark.parametrize("method", ["cc", "mcc"])
def test_instances_are_compared_as_in_the_joint_loss(method):
    config, _, net = _setup(method=method, unlabelled=False, projections=4)
    (joint,) = config.method.stages()
    views = torch.rand(2, 6, 1, *2 * (config.views.size,))
    z = joint.represent(net, *views)[: 2 if method == "cc" else 4]
    expected = nt_xent(*z, 0.5) if method == "cc" else momentum_contrast(Quartet(*z), 0.5)
    alone = joint.on_unlabelled
    torch.testing.assert_close(alone.loss(alone.represent(net, *views)), expected)


def test_a_simulated_client_knows_which_images_have_a_label_if_others_have_none():
    images = load_dataset("digits", limit=26)
    labels = np.where(np.arange(26) % 2, images.labels, -1)
    config = resolve(parse({"clusters": 3, "device": "cpu"}), images)
    for given, expected in ((labels, np.arange(1, 26, 2)), (images.labels, None), (labels * 0 - 1, None)):
        every = [np.arange(26)]
        (client,) = _clients(config, replace(images, labels=given), every, None)
        np.testing.assert_array_equal(client.labelled, expected)
