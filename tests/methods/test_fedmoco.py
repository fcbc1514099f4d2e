import math
from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.messages import Task
from fedmcc.methods.fedmoco import FedMoCo, Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import add_prefix, detached, select
from fedmcc.training.loop import Training, train, trainable
from fedmcc.views import preset


def _setup(queue=7, **fields):
    method = FedMoCo(epochs=1, hidden=16, projections=8, queue=queue, **fields)
    encoder = ConvNetOptions(width=4, norm=method.norm).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(0))
    return net, method.stages()[0]


def _views(n=5):
    a, b = torch.rand(2, n, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return a, b


def _keys(start, count):
    """Keys whose entries are their number."""
    return torch.arange(start, start + count, dtype=torch.float32)[:, None].repeat(1, 8)


def _last(answer):
    try:
        while True:
            next(answer)
    except StopIteration as end:
        return end.value


def test_loss_equals_a_loop_over_the_key_and_the_queue():
    net, stage = _setup(norm="group", temperature=0.3)
    a, b = _views()
    with torch.no_grad():
        queries = F.normalize(net.online.instance_projector(net.online.encoder(a)), dim=1).double()
        keys = F.normalize(net.target.instance_projector(net.target.encoder(b)), dim=1).double()
    total = 0.0
    for query, key in zip(queries, keys, strict=True):
        positive = math.exp(float(query @ key) / 0.3)
        negatives = sum(math.exp(float(query @ other.double()) / 0.3) for other in net.queue)
        total -= math.log(positive / (positive + negatives))
    assert stage.loss(stage.represent(net, a, b)).item() == pytest.approx(total / len(a), rel=1e-5)


def test_the_queue_starts_with_unit_rows_that_are_the_same_everywhere():
    (one, _), (other, _) = _setup(queue=64), _setup(queue=64)
    torch.testing.assert_close(one.queue.norm(dim=1), torch.ones(64))
    assert torch.equal(one.queue, other.queue)
    assert one.queue.unique(dim=0).shape[0] == 64


def test_the_newest_keys_replace_the_oldest_in_their_order():
    net, expected = _setup(queue=7)[0], [-1.0] * 7  # 7 is not a multiple of the batch size 3
    net.queue.fill_(-1.0)
    for start in range(0, 15, 3):
        net.enqueue(_keys(start, 3))
        expected = [*expected, start, start + 1, start + 2][-7:]
        place = int(net.position)
        assert torch.roll(net.queue[:, 0], -place).tolist() == expected


def test_if_there_are_more_keys_than_the_queue_holds_the_last_are_kept():
    net, _ = _setup(queue=4)
    net.enqueue(_keys(0, 10))
    assert sorted(net.queue[:, 0].tolist()) == [6.0, 7.0, 8.0, 9.0]
    net.enqueue(_keys(10, 1))
    assert sorted(net.queue[:, 0].tolist()) == [7.0, 8.0, 9.0, 10.0]


def test_after_a_step_the_keys_are_in_the_queue_and_the_target_has_moved():
    net, stage = _setup(momentum=0.9)
    outputs = stage.represent(net, *_views(2))
    before = deepcopy(list(net.target.parameters()))
    with torch.no_grad():
        for parameter in net.online.parameters():
            parameter.add_(1.0)
    stage.after_step(net, outputs)
    assert torch.equal(net.queue[:2], outputs.key)
    for slow, was in zip(net.target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, was + 0.1)


def test_no_gradient_reaches_key_or_queue():
    net, stage = _setup()
    outputs = stage.represent(net.requires_grad_(True), *_views())
    stage.loss(outputs).backward()
    assert not outputs.key.requires_grad
    assert all(parameter.grad is None for parameter in net.target.parameters())
    assert all(parameter.grad is not None for parameter in net.online.parameters())


def test_a_round_starts_with_both_networks_equal_to_the_global_one_and_the_old_queue():
    net, stage = _setup()
    net.enqueue(_keys(0, 3))
    queue = net.queue.clone()
    sent = {name: torch.full_like(value, 2) for name, value in select(net.state_dict(), stage.shared).items()}
    for number in (1, 2):
        stage.receive(net, Task(0, stage.name, number, sent), {})
        assert all((value == 2).all() for value in net.online.state_dict().values())
        assert all((value == 2).all() for value in net.target.state_dict().values())
    assert torch.equal(net.queue, queue)


def test_an_update_has_only_the_query_network():
    net, stage = _setup(queue=30)
    images = load_dataset("digits", limit=16).images
    client = Client(0, images, preset("digits", size=8), Training(batch_size=8, keep_optimizer=False), 0)
    task = Task(0, stage.name, 1, detached(select(net.state_dict(), stage.shared)))
    answer = client.answer(net, stage, task, add_prefix("net", detached(net.state_dict())))
    update, state = _last(answer)
    assert set(update.weights) == {name for name in net.state_dict() if name.startswith("online.")}
    assert update.extras == {}
    assert int(state["net.position"]) == 16
    assert state["net.queue"].shape == (30, 8)


def test_with_group_normalisation_rows_depend_on_their_own_image_alone():
    net, stage = _setup(norm="group")
    a, b = _views(6)
    whole, part = stage.represent(net, a, b), stage.represent(net, a[1:4], b[1:4])
    for name in Outputs._fields:
        torch.testing.assert_close(getattr(part, name), getattr(whole, name)[1:4], rtol=1e-5, atol=1e-6)


def test_training_lowers_the_loss_once_the_queue_is_full():
    net, stage = _setup(queue=64)
    optimizer = Training(learning_rate=3e-3).build_optimizer(trainable(net, stage))
    losses = list(train(net, stage, [_views(32)] * 60, optimizer))
    assert losses[-1] < losses[4] - 0.2


@pytest.mark.parametrize("field", [{"queue": 0}, {"momentum": -0.1}, {"temperature": 0.0}])
def test_invalid_options_are_refused(field):
    with pytest.raises(InputError, match=rf"method\.{next(iter(field))}"):
        FedMoCo(**field)
