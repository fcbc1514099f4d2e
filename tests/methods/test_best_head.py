"""Several heads: clients send the loss of each, and the server chooses one without labels."""

import torch

from fedmcc.messages import Update
from fedmcc.methods.centroids import HEAD
from fedmcc.methods.iic import IIC
from fedmcc.methods.inputs import Overview
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.heads import Heads
from fedmcc.numerics.state_dicts import detached, select


def _net(heads=3):
    encoder, method = ConvNetOptions(width=2).build(1, 8), IIC(heads=heads, over=2.0)
    net, (stage,) = method.build(encoder, encoder.features, 4), method.stages()
    net.notes = stage.first_notes(net, 8)
    return net, stage


def _update(net, stage, samples, losses):
    weights = detached(select(net.state_dict(), stage.shared))
    return Update(0, stage.name, 1, samples, 0.0, weights, {"head_losses": torch.tensor(losses)})


def test_all_heads_are_softmax_layers_and_best_is_one_of_them():
    heads, features = Heads(5, 4, 3), torch.randn(6, 5)
    logits = heads.linear(features)
    for number in range(3):
        heads.best.fill_(number)
        expected = logits[:, 4 * number : 4 * (number + 1)].softmax(dim=1)
        torch.testing.assert_close(heads(features), expected)
        torch.testing.assert_close(heads.all(features)[:, number], expected)


def test_the_server_chooses_the_smallest_loss_over_all_images():
    net, stage = _net()
    updates = [_update(net, stage, 10, [0.0, 0.5, 1.0]), _update(net, stage, 90, [1.0, 0.5, 0.9])]
    assert [stage.extras_error(update) for update in updates] == ["", ""]
    weights = stage.combine(updates, detached(net.state_dict())).weights
    assert int(weights[f"{HEAD}.best"]) == 1
    assert set(weights) == set(select(net.state_dict(), stage.shared))


def test_clients_send_the_mean_loss_of_each_head_in_the_last_epoch():
    net, stage = _net()
    outputs = [stage.represent(net, *torch.rand(3, 8, 1, 8, 8)) for _ in range(3)]
    stage.after_step(net, outputs[0])  # of an earlier epoch
    stage.prepare(net, Overview(lambda: iter(()), 1, 2, seed=0))
    for each in outputs[1:]:
        stage.after_step(net, each)
    expected = (stage.by_head(outputs[1]) + stage.by_head(outputs[2])) / 2
    torch.testing.assert_close(stage.extras(net, [])["head_losses"], expected.detach())


def test_a_missing_loss_is_refused():
    net, stage = _net()
    assert stage.extras_error(_update(net, stage, 10, [0.0, 0.5])).endswith(".")
