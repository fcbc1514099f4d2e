"""What every encoder promises: registering one in ENCODERS is testing it."""

from dataclasses import fields, is_dataclass

import pytest
import torch

from fedmcc.networks import ENCODERS, is_frozen
from fedmcc.networks.initialise import initialise

over_options = pytest.mark.parametrize("name", ENCODERS)
over_encoders = pytest.mark.parametrize(  # those in files are tested in tests/networks
    "name", [name for name, kind in ENCODERS.items() if not is_frozen(kind)]
)


def _built(name, channels=1, size=16, norm="batch"):
    kind = ENCODERS[name]
    has_norm = "norm" in {field.name for field in fields(kind)}
    encoder = kind(**({"norm": norm} if has_norm else {})).build(channels, size)
    initialise(encoder, torch.Generator().manual_seed(0))
    return encoder


@over_options
def test_options_are_a_frozen_dataclass_with_defaults_and_a_sentence(name):
    kind = ENCODERS[name]
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert kind() == kind()
    assert kind.__doc__.strip().splitlines()[0].endswith(".")
    assert not kind.__doc__.startswith(f"{kind.__name__}(")


@over_encoders
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 20)])
def test_an_image_becomes_a_row_of_as_many_features_as_announced(name, channels, size):
    encoder = _built(name, channels, size).eval()
    assert isinstance(encoder.features, int)
    found = encoder(torch.rand(2, channels, size, size))
    assert found.shape == (2, encoder.features)
    assert torch.isfinite(found).all()


@over_encoders
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 20)])
def test_an_encoder_has_the_shape_of_its_images_and_maps_that_collapse_to_features(name, channels, size):
    encoder = _built(name, channels, size).eval()
    assert encoder.shape == (channels, size, size)
    images = torch.rand(2, channels, size, size)
    maps = encoder.maps(images)
    assert maps.dim() == 4
    assert torch.equal(encoder.collapse(maps), encoder(images))


@over_encoders
def test_features_tell_images_apart_and_every_parameter_learns(name):
    encoder = _built(name, norm="group")
    found = encoder(torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(1)))
    assert not torch.allclose(found[0], found[1])
    if found.requires_grad:  # the encoder has weights
        found.square().sum().backward()
    gradients = [parameter.grad for parameter in encoder.parameters()]
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)


@over_encoders
def test_with_group_norm_a_row_depends_on_its_own_image_alone(name):
    encoder = _built(name, norm="group")
    images = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(encoder(images)[1:3], encoder(images[1:3]), rtol=1e-3, atol=1e-4)
    assert not list(encoder.buffers())


@over_encoders
def test_in_eval_mode_a_row_depends_on_its_own_image_alone(name):
    encoder = _built(name).eval()
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]), rtol=1e-3, atol=1e-4)


@over_encoders
def test_same_generator_same_weights(name):
    one, other = _built(name).state_dict(), _built(name).state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)
