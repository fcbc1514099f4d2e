import pytest
import torch

from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.methods.ae import AE
from fedmcc.methods.inputs import PLAIN, VIEW
from fedmcc.networks.autoencoder import Decoder
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.networks.pixels import Pixels
from fedmcc.training.chunked import StoredBatch
from fedmcc.training.loop import Training, train, trainable
from fedmcc.views import Views


def _images(n=32, size=12):
    return Views().plain(torch.from_numpy(Synthetic(samples=n, size=size, channels=1).load().images))


def _net(encoder, **options):
    net = AE(**options).build(encoder, encoder.features, 4)
    initialise(net, torch.Generator().manual_seed(0))
    return net


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8), (3, 4, 4), (1, 45, 45)])
def test_a_decoder_has_logits_for_every_pixel(shape):
    assert Decoder(10, shape, width=2, norm="group")(torch.rand(3, 10)).shape == (3, *shape)


def test_the_loss_is_the_mean_squared_error_of_all_pixels():
    images, stage = _images(5), AE().stages()[0]
    net = _net(ConvNetOptions(width=2).build(1, 12), code=3).eval()
    reconstructed = net.decoder(net.online.encoder(images)).sigmoid().detach()
    total = sum(float((a - b) ** 2) for a, b in zip(reconstructed.flatten(), images.flatten(), strict=True))
    loss = stage.loss(stage.represent(net, images)).item()
    assert loss == pytest.approx(total / images.numel(), rel=1e-4)


def _trained(net, images, steps):
    stage = AE().stages()[0]
    optimizer = Training(learning_rate=5e-3).build_optimizer(trainable(net, stage))
    return list(train(net, stage, [StoredBatch(images)] * steps, optimizer))


def test_reconstruction_gets_better_than_the_mean_image():
    images = _images()
    losses = _trained(_net(ConvNetOptions(width=4).build(1, 12)), images, 60)
    assert losses[-1] < float(images.var(dim=0, unbiased=False).mean())


def test_from_all_pixels_16_images_can_be_reconstructed():
    images = _images(16, 8)
    losses = _trained(_net(Pixels(1, 8), code=64, width=8, norm="group"), images, 250)
    assert losses[-1] < 0.05 * float(images.var())


def test_features_are_the_code_and_scores_look_at_it():
    net = _net(ConvNetOptions(width=2).build(1, 12), code=7)
    assert net.online.encoder.features == 7
    assert net.online.encoder(_images(3)).shape == (3, 7)


def test_augment_reconstructs_views():
    assert AE().stages()[0].sees == (PLAIN,)
    assert AE(augment=True).stages()[0].sees == (VIEW,)


def test_an_encoder_without_a_shape_is_refused_with_a_remedy():
    encoder = torch.nn.Flatten()
    with pytest.raises(InputError, match="choose another encoder"):
        AE().build(encoder, 64, 4)


@pytest.mark.parametrize("field", ["code", "width"])
def test_options_of_0_are_refused_by_name(field):
    with pytest.raises(InputError, match=rf"method\.{field} is 0"):
        AE(**{field: 0})
