"""Fusing BatchNorm into convolutions changes features only by rounding."""

import pytest
import torch
from torch import nn

from fedmcc.networks import ENCODERS, is_frozen
from fedmcc.networks.fuse_batchnorm import fuse_batchnorm


def _with_statistics(encoder):
    """Set an encoder to eval mode, with weights and statistics that are not the initial ones."""
    draw = torch.Generator().manual_seed(0)
    for layer in encoder.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                tensor.data = 0.5 + torch.rand(tensor.shape, generator=draw)
    return encoder.eval()


def _norms(encoder):
    return sum(isinstance(layer, nn.BatchNorm2d) for layer in encoder.modules())


@pytest.mark.parametrize("name", [name for name, kind in ENCODERS.items() if not is_frozen(kind)])
def test_a_fused_encoder_gives_the_same_features(name):
    encoder = _with_statistics(ENCODERS[name]().build(3, 16))
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    copy = fuse_batchnorm(encoder, images[:2])
    assert _norms(copy) == 0
    assert _norms(encoder) > 0 or not before  # pixels have no weights
    with torch.no_grad():
        torch.testing.assert_close(copy(images), encoder(images), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


def test_group_normalisation_is_kept():
    encoder = ENCODERS["convnet"](norm="group").build(1, 16).eval()
    copy = fuse_batchnorm(encoder, torch.rand(2, 1, 16, 16))
    assert [type(layer) for layer in copy.modules()] == [type(layer) for layer in encoder.modules()]


class Twice(nn.Module):
    """Uses the output of the convolution in its BatchNorm and elsewhere."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images):
        maps = self.convolution(images)
        return (maps + self.norm(maps)).mean(dim=(2, 3))


def test_an_encoder_that_cannot_be_fused_is_returned_unchanged():
    encoder = _with_statistics(Twice())
    assert fuse_batchnorm(encoder, torch.rand(2, 1, 8, 8)) is encoder
