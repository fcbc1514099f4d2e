import pytest
import torch
from torch.nn import functional as F

from fedmcc.errors import InputError
from fedmcc.methods.inputs import Overview
from fedmcc.methods.vae import VAE, divergence
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise


def _net(**options):
    encoder = ConvNetOptions(width=2).build(1, 8)
    net = VAE(code=3, **options).build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    return net.eval()


def _stage(**options):
    return VAE(code=3, **options).stages()[0]


@pytest.mark.parametrize(("mean", "log_variance"), [(0.0, 0.0), (1.5, -1.0), (-0.3, 0.8)])
def test_the_divergence_is_the_integral(mean, log_variance):
    x = torch.linspace(-20, 20, 200_001, dtype=torch.float64)
    own = torch.distributions.Normal(mean, torch.tensor(log_variance).double().div(2).exp())
    prior = torch.distributions.Normal(torch.tensor(0.0).double(), 1.0)
    integral = torch.trapezoid(own.log_prob(x).exp() * (own.log_prob(x) - prior.log_prob(x)), x)
    found = divergence(torch.tensor([[mean, mean]]), torch.tensor([[log_variance, log_variance]]))
    assert found.item() == pytest.approx(2 * integral.item(), abs=1e-5)


def test_without_variance_and_divergence_it_is_an_autoencoder_with_cross_entropy():
    net, stage, images = _net(), _stage(beta=0.0), torch.rand(5, 1, 8, 8)
    net.notes = stage.first_notes(net, 5)
    with torch.no_grad():
        net.spread.weight.zero_()
        net.spread.bias.fill_(-40)
        logits = net.decoder(net.online.encoder(images))
        expected = F.binary_cross_entropy_with_logits(logits, images, reduction="sum") / 5
        found = stage.loss(stage.represent(net, images, torch.arange(5)))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_code_is_the_mean_plus_noise_times_the_deviation():
    net, stage, images = _net(), _stage(), torch.rand(4, 1, 8, 8)
    net.notes = {"noise": torch.randn(9, 3)}
    rows, codes = torch.tensor([8, 0, 3, 3]), []
    net.decoder.register_forward_pre_hook(lambda _, inputs: codes.append(inputs[0]))
    stage.represent(net, images, rows)
    features = net.online.encoder.encoder(images)
    deviation = (net.spread(features) / 2).exp()
    torch.testing.assert_close(codes[0], net.online.encoder(images) + deviation * net.notes["noise"][rows])


def test_noise_is_new_in_every_epoch_and_depends_on_the_seed_alone():
    net, stage = _net(), _stage()
    drawn = []
    for seed in (1, 2, 1):
        net.notes = stage.first_notes(net, 2000)
        stage.prepare(net, Overview(lambda: iter(()), 0, 10, seed))
        drawn.append(net.notes["noise"])
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert drawn[0].mean().abs() < 0.05
    assert drawn[0].var().item() == pytest.approx(1, abs=0.05)


def test_a_negative_beta_is_refused_by_name():
    with pytest.raises(InputError, match=r"method\.beta is -1"):
        VAE(beta=-1.0)
