from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.messages import Task
from fedmcc.methods.fedbyol import FedBYOL, Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import add_prefix, detached, select
from fedmcc.training.loop import Training, train, trainable
from fedmcc.views import preset

METHOD = FedBYOL(epochs=1, hidden=16, projections=8)
(STAGE,) = METHOD.stages()


def _net(method=METHOD, seed=0):
    encoder = ConvNetOptions(width=4, norm=method.norm).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(seed))
    return net


def _views(n=6):
    a, b = torch.rand(2, n, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return a, b


def _answer(net, state, round=1):
    images = load_dataset("digits", limit=16).images
    client = Client(3, images, preset("digits", size=8), Training(batch_size=8, keep_optimizer=False), 0)
    task = Task(3, STAGE.name, round, detached(select(net.state_dict(), STAGE.shared)))
    answer = client.answer(net, STAGE, task, state)
    try:
        while True:
            next(answer)
    except StopIteration as end:
        return end.value


def test_defaults_are_the_published_ones():
    net = FedBYOL().build(torch.nn.Identity(), 512, 10)
    shapes = [
        tuple(value.shape) for value in select(net.state_dict(), ("predictor",)).values() if value.dim() == 2
    ]
    assert shapes == [(4096, 2048), (2048, 4096)]
    assert net.online.instance_projector[0].weight.shape == (4096, 512)
    assert net.online.instance_projector[3].weight.shape == (2048, 4096)
    assert net.online.cluster_projector is None


def test_loss_is_the_squared_distance_of_unit_vectors_both_ways():
    rows = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    p_a, p_b, z_a, z_b = (F.normalize(part.double(), dim=1) for part in rows)
    expected = ((p_a - z_b) ** 2).sum() / 5 + ((p_b - z_a) ** 2).sum() / 5
    torch.testing.assert_close(STAGE.loss(Outputs(*rows)).double(), expected, rtol=1e-5, atol=1e-6)


def test_outputs_are_predictions_of_online_and_projections_of_target():
    net, (a, b) = _net(), _views()
    slow = deepcopy(net.target)
    outputs = STAGE.represent(net, a, b)
    torch.testing.assert_close(outputs.z_b_target, slow.instance_projector(slow.encoder(b)))
    expected = net.predictor(net.online.instance_projector(net.online.encoder(a)))
    torch.testing.assert_close(outputs.p_a, expected)


def test_no_gradient_reaches_the_target_even_if_it_requires_one():
    net = _net().requires_grad_(True)
    STAGE.loss(STAGE.represent(net, *_views())).backward()
    assert all(parameter.grad is None for parameter in net.target.parameters())
    assert all(parameter.grad is not None for parameter in net.online.parameters())
    assert all(parameter.grad is not None for parameter in net.predictor.parameters())


def test_the_target_is_the_moving_average_of_the_parameters_alone():
    net = _net()
    before, buffers = deepcopy(list(net.target.parameters())), deepcopy(dict(net.target.named_buffers()))
    outputs = STAGE.represent(net, *_views())
    own = deepcopy(dict(net.target.named_buffers()))
    with torch.no_grad():
        for parameter in net.online.parameters():
            parameter.add_(1.0)
    STAGE.after_step(net, outputs)
    for slow, was in zip(net.target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, was + 0.01)
    assert all(torch.equal(value, own[name]) for name, value in net.target.named_buffers())
    assert any(not torch.equal(value, buffers[name]) for name, value in own.items())  # updated by the batch


def test_the_target_is_copied_in_the_first_round_and_kept_afterwards():
    net, memory = _net(), {}
    sent = {name: torch.full_like(value, 3) for name, value in select(net.state_dict(), STAGE.shared).items()}
    STAGE.receive(net, Task(0, STAGE.name, 1, sent), memory)
    assert all((value == 3).all() for value in net.state_dict().values())
    STAGE.receive(net, Task(0, STAGE.name, 2, {name: value + 1 for name, value in sent.items()}), memory)
    assert all((value == 3).all() for value in net.target.state_dict().values())
    assert all((value == 4).all() for value in net.online.state_dict().values())
    assert all((value == 4).all() for value in net.predictor.state_dict().values())


def test_an_update_has_the_online_network_and_the_predictor_but_not_the_target():
    net = _net()
    update, state = _answer(net, add_prefix("net", detached(net.state_dict())))
    assert set(update.weights) == {
        name for name in net.state_dict() if name.startswith(("online.", "predictor."))
    }
    assert update.extras == {}
    assert any(name.startswith("net.target.") for name in state)


def test_the_target_is_kept_until_the_next_round():
    net = _net()
    _, first = _answer(net, add_prefix("net", detached(net.state_dict())))
    other = _net(seed=9)  # weights left by another client, and another global model
    net.load_state_dict(other.state_dict())
    memory = {"met": torch.tensor(True)}
    net.load_state_dict({name: first[f"net.{name}"] for name in net.state_dict()})
    STAGE.receive(net, Task(0, STAGE.name, 2, select(other.state_dict(), STAGE.shared)), memory)
    assert all(
        torch.equal(value, first[f"net.target.{name}"]) for name, value in net.target.state_dict().items()
    )
    assert all(
        torch.equal(value, other.online.state_dict()[n]) for n, value in net.online.state_dict().items()
    )


def test_with_group_normalisation_rows_depend_on_their_own_image_alone():
    method = FedBYOL(hidden=16, projections=8, norm="group")
    net, (stage,), (a, b) = _net(method), method.stages(), _views()
    whole, part = stage.represent(net, a, b), stage.represent(net, a[2:3], b[2:3])
    for one, expected in zip(part, whole, strict=True):
        torch.testing.assert_close(one, expected[2:3], rtol=1e-5, atol=1e-6)


def test_training_lowers_the_loss():
    net, views = _net(), _views(32)
    losses = list(
        train(net, STAGE, [views] * 30, Training(learning_rate=3e-3).build_optimizer(trainable(net, STAGE)))
    )
    assert losses[-1] < losses[0] - 0.2


def test_initial_weights_of_the_predictor_come_from_the_generator():
    one, same, other = _net(seed=4), _net(seed=4), _net(seed=5)
    assert torch.equal(one.predictor[0].weight, same.predictor[0].weight)
    assert not torch.equal(one.predictor[0].weight, other.predictor[0].weight)
    assert torch.equal(one.target.encoder.stages[0][0].weight, one.online.encoder.stages[0][0].weight)


@pytest.mark.parametrize("field", [{"momentum": 1.5}, {"hidden": 0}, {"projections": -1}])
def test_invalid_options_are_refused(field):
    with pytest.raises(InputError, match=rf"method\.{next(iter(field))}"):
        FedBYOL(**field)
