import pytest
import torch
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.fedsimsiam import FedSimSiam, Outputs
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import select
from fedmcc.training.loop import Training, train, trainable


def _setup(**fields):
    method = FedSimSiam(hidden=16, projections=8, **fields)
    encoder = ConvNetOptions(width=4, norm=method.norm).build(1, 8)
    net = method.build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(0))
    return net, method.stages()[0]


def _views(n=6):
    a, b = torch.rand(2, n, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return a, b


def test_loss_is_minus_half_of_both_cosines():
    _, stage = _setup()
    p_a, p_b, z_a, z_b = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    expected = -0.5 * (F.cosine_similarity(p_a, z_b) + F.cosine_similarity(p_b, z_a)).mean()
    torch.testing.assert_close(stage.loss(Outputs(p_a, p_b, z_a, z_b)), expected)


def test_a_perfect_prediction_has_the_loss_minus_one():
    _, stage = _setup()
    p, z = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    assert stage.loss(Outputs(3 * p, z, 5 * z, p)).item() == pytest.approx(-1)


def test_the_gradient_flows_through_predictions_alone():
    """Compare with the gradient of a loss whose projections are constants."""
    net, stage = _setup(norm="group")
    a, b = _views()
    stage.loss(stage.represent(net, a, b)).backward()
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    with torch.no_grad():
        z_a, z_b = (net.online.instance_projector(net.online.encoder(view)) for view in (a, b))
    net.zero_grad()
    p_a, p_b = (net.predictor(net.online.instance_projector(net.online.encoder(view))) for view in (a, b))
    (-0.5 * (F.cosine_similarity(p_a, z_b) + F.cosine_similarity(p_b, z_a)).mean()).backward()
    for gradient, parameter in zip(gradients, net.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_projections_carry_no_gradient():
    net, stage = _setup()
    outputs = stage.represent(net, *_views())
    assert not outputs.z_a.requires_grad
    assert not outputs.z_b.requires_grad


def test_encoder_projector_and_predictor_are_shared_and_there_is_no_target():
    net, stage = _setup()
    assert set(select(net.state_dict(), stage.shared)) == set(net.state_dict())
    assert set(dict(net.named_children())) == {"online", "predictor"}


def test_training_lowers_the_loss():
    net, stage = _setup()
    optimizer = Training(learning_rate=3e-3).build_optimizer(trainable(net, stage))
    losses = list(train(net, stage, [_views(32)] * 20, optimizer))
    assert losses[-1] < losses[0] - 0.2


def test_an_invalid_width_is_refused():
    with pytest.raises(InputError, match=r"method\.hidden"):
        FedSimSiam(hidden=0)
