import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Task, Update
from fedmcc.methods.fedca import FedCA
from fedmcc.methods.fedsimclr import FedSimCLR
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.training.loop import Training, trainable
from fedmcc.views import preset

SMALL = {"hidden": 16, "projections": 8, "epochs": 1}


def _setup(kind=FedCA, norm="group", **fields):
    method = kind(**SMALL, norm=norm, **fields)
    encoder = ConvNetOptions(width=4, norm=norm).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(0))
    return net, method.stages()[0]


def _views(n=4):
    a, b = torch.rand(2, n, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return a, b


def _unit(rows):
    rows = rows.detach().double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _extras(rows, owners):
    drawn = torch.randn(rows, 8, generator=torch.Generator().manual_seed(5))
    return {"dictionary": torch.nn.functional.normalize(drawn, dim=1), "owners": torch.tensor(owners)}


def _received(extras, client=0, **fields):
    net, stage = _setup(**fields)
    weights = detached(select(net.state_dict(), (*stage.frozen, *stage.shared)))
    stage.receive(net, Task(client, stage.name, 2, weights, extras), {})
    return net, stage


def _naive(rows, dictionary, temperature):
    """NT-Xent in loops: identify each row's partner among the other rows and the whole dictionary."""
    n, total = len(rows) // 2, 0.0
    for i, row in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i] + list(dictionary)
        denominator = sum(math.exp(row @ other / temperature) for other in others)
        total -= math.log(math.exp(row @ rows[(i + n) % (2 * n)] / temperature) / denominator)
    return total / (2 * n)


def test_the_dictionary_of_other_clients_enters_the_denominator():
    extras = _extras(9, [0, 0, 0, 1, 1, 1, 1, 2, 2])
    net, stage = _received(extras, client=1, temperature=0.5)
    outputs = stage.represent(net, *_views())
    rows = np.concatenate([_unit(outputs.z_a), _unit(outputs.z_b)])
    expected = _naive(rows, extras["dictionary"][[0, 1, 2, 7, 8]].double().numpy(), 0.5)
    assert stage.loss(outputs).item() == pytest.approx(expected, rel=1e-5)
    assert expected > _naive(rows, [], 0.5)


def test_without_a_dictionary_it_is_simclr():
    (net, stage), (other, simclr) = _setup(), _setup(FedSimCLR)
    loss, expected = (s.loss(s.represent(n, *_views())) for n, s in ((net, stage), (other, simclr)))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for parameter, same in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, same.grad, rtol=1e-4, atol=1e-6)


def test_a_clients_own_projections_are_left_out():
    net, _ = _received(_extras(5, [0] * 5), client=0)
    assert len(net.foreign) == 0


def test_what_a_client_uploads_are_the_last_projections_it_trained_on():
    net, stage = _setup(dictionary=6)
    projections = []
    for seed in range(3):
        views = torch.rand(2, 4, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        outputs = stage.represent(net, *views)
        stage.after_step(net, outputs)
        projections += list(outputs.z_a.detach())
    dictionary = stage.extras(net, np.zeros((1, 1, 8, 8), np.uint8))["dictionary"]
    assert torch.equal(dictionary, torch.stack(projections[-6:]))
    torch.testing.assert_close(dictionary.norm(dim=1), torch.ones(6))
    assert not dictionary.requires_grad


def test_the_server_puts_the_dictionaries_side_by_side_with_their_owners():
    net, stage = _setup()
    weights = detached(select(net.state_dict(), stage.shared))
    parts = {2: torch.full((3, 8), 2.0), 5: torch.full((1, 8), 5.0)}
    updates = [Update(k, stage.name, 1, 4, 0.1, weights, {"dictionary": part}) for k, part in parts.items()]
    combined = stage.combine(updates, weights)
    assert combined.extras["dictionary"][:, 0].tolist() == [2.0, 2.0, 2.0, 5.0]
    assert combined.extras["owners"].tolist() == [2, 2, 2, 5]
    assert combined.weights.keys() == weights.keys()


def test_in_a_federation_the_dictionary_reaches_the_other_clients():
    net, stage = _setup(norm="batch", dictionary=6, rounds=2)
    images, training = load_dataset("digits", limit=32).images, Training(batch_size=8, keep_optimizer=False)
    views = preset("digits", size=8)
    clients = [Client(k, images[k * 16 : k * 16 + 16], views, training, 0) for k in range(2)]
    events = rounds(stage, Progress(detached(net.state_dict())), Embedded(net, clients), [0, 1])
    first, second = (event for event in events if isinstance(event, Round))
    sent = first.updates[0].extras["dictionary"]
    assert sent.shape == (6, 8)
    assert torch.equal(net.foreign, sent)  # client 1 was the last to use the network
    assert set(second.updates[1].weights) == set(select(net.state_dict(), ("online",)))
    assert second.bytes_down - first.bytes_down == 2 * 12 * (8 * 4 + 8)


def test_a_round_starts_with_empty_dictionaries():
    net, stage = _received(_extras(5, [1] * 5))
    stage.after_step(net, stage.represent(net, *_views()))
    stage.receive(net, Task(0, stage.name, 1, {}), {})
    assert len(net.foreign) == len(net.gathered) == 0


def test_alignment_is_the_squared_distance_to_the_base_encoders_features(tmp_path):
    encoder = ConvNetOptions(width=4, norm="group").build(1, 8)
    initialise(encoder, torch.Generator().manual_seed(8))
    save_file(encoder.state_dict(), tmp_path / "base.safetensors")
    net, stage = _setup(base=tmp_path / "base.safetensors", alignment=0.3)
    trainable(net, stage)
    (a, b), total = _views(), 0.0
    for view in (a, b):
        total += ((net.online.encoder(view) - encoder(view)) ** 2).sum().item() / 8
    outputs = stage.represent(net, a, b)
    plain = stage.loss(outputs._replace(drift=torch.zeros(4)))
    assert total > 1e-3
    assert (stage.loss(outputs) - plain).item() == pytest.approx(0.3 * total, rel=1e-4)


def test_the_base_encoder_is_sent_once_and_never_trained(tmp_path):
    encoder = ConvNetOptions(width=4, norm="group").build(1, 8)
    save_file(encoder.state_dict(), tmp_path / "base.safetensors")
    net, stage = _setup(base=tmp_path / "base.safetensors")
    assert stage.frozen == ("base",)
    assert stage.shared == stage.trained == ("online",)
    trainable(net, stage)
    stage.loss(stage.represent(net, *_views())).backward()
    assert all(parameter.grad is None for parameter in net.base.parameters())
    assert torch.equal(net.base.stages[0][0].weight, encoder.stages[0][0].weight)


def test_a_missing_base_file_is_named():
    with pytest.raises(InputError, match=r"nowhere\.safetensors.*method\.base"):
        _setup(base=Path("nowhere.safetensors"))


@pytest.mark.parametrize("field", [{"dictionary": 0}, {"temperature": 0.0}, {"alignment": -1.0}])
def test_invalid_options_are_refused(field):
    with pytest.raises(InputError, match=rf"method\.{next(iter(field))}"):
        FedCA(**field)
