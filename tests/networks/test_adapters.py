"""Low-rank adapters of a pretrained folder: only they are drawn, trained, sent and stored."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from fedmcc.config import parse
from fedmcc.errors import InputError
from fedmcc.networks import in_files, is_frozen
from fedmcc.networks.huggingface import HuggingFaceOptions
from fedmcc.networks.initialise import initialise

pytest.importorskip("transformers")
pytest.importorskip("peft")
KINDS = ["dinov2", "clip", "siglip", "convnext", "resnet", "vit"]
RANK = 2


@pytest.fixture
def images():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def _built(folder, seed=0):
    encoder = HuggingFaceOptions(folder, adapters=RANK).build(1, 8)
    initialise(encoder, torch.Generator().manual_seed(seed))
    return encoder


def _drawn(folder):
    """An encoder whose adapters change its features."""
    encoder, draw = _built(folder), torch.Generator().manual_seed(2)
    for parameter in encoder.requires_grad_(True).parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=draw)
    return encoder


@pytest.mark.parametrize("kind", KINDS)
def test_before_training_features_are_those_of_the_frozen_encoder_to_the_bit(
    encoder_files, tmp_path, images, kind
):
    encoder_files.write_folder(tmp_path, kind)
    encoder, frozen = _built(tmp_path), HuggingFaceOptions(tmp_path).build(1, 8)
    one_by_one = torch.cat([encoder(image[None]) for image in images])
    assert torch.equal(one_by_one, frozen(images))
    assert encoder.features == frozen.features
    assert encoder.identity == frozen.identity


@pytest.mark.parametrize("kind", KINDS)
def test_every_adapter_learns_and_changes_the_features(encoder_files, tmp_path, images, kind):
    encoder_files.write_folder(tmp_path, kind)
    encoder, frozen = _drawn(tmp_path), HuggingFaceOptions(tmp_path).build(1, 8)
    found = encoder(images)
    assert not torch.allclose(found, frozen(images))
    (found**3).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def _layers(model, kind):
    """The adapted layers: all linear ones of a DINOv2, the convolutions in the stages of a ResNet."""
    if kind == "dinov2":
        return [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [module for module in model.encoder.stages.modules() if isinstance(module, nn.Conv2d)]


def _merge(layer, adapter):
    """W + BA, where each column of A and W is one input of the layer at one place of its kernel."""
    down, up = adapter.down.weight.detach().flatten(1), adapter.up.weight.detach().flatten(1)
    layer.weight.data += (up @ down).reshape(layer.weight.shape)


@pytest.mark.parametrize("kind", ["dinov2", "resnet"])
def test_features_and_gradients_are_those_of_the_weight_plus_the_product(
    encoder_files, tmp_path, images, kind
):
    model = encoder_files.write_folder(tmp_path, kind)
    encoder, layers = _drawn(tmp_path), _layers(model, kind)
    for layer, adapter in zip(layers, encoder.trained, strict=True):
        _merge(layer, adapter)
    expected = model(pixel_values=encoder.normalise(images)).pooler_output.flatten(1)
    torch.testing.assert_close(encoder(images), expected, rtol=1e-4, atol=1e-5)
    (encoder(images) ** 3).sum().backward()
    (expected**3).sum().backward()
    for layer, adapter in zip(layers, encoder.trained, strict=True):
        whole = layer.weight.grad.flatten(1)  # dL/dW, from which dL/dA = B'dL/dW and dL/dB = dL/dW A'
        for factor, gradient in (
            (adapter.down, adapter.up.weight.flatten(1).T @ whole),
            (adapter.up, whole @ adapter.down.weight.flatten(1).T),
        ):
            torch.testing.assert_close(factor.weight.grad.flatten(1), gradient, rtol=1e-3, atol=1e-4)


def test_the_state_has_two_thin_factors_for_each_linear_layer_and_nothing_else(encoder_files, tmp_path):
    encoder_files.write_folder(tmp_path, "dinov2")
    state = _built(tmp_path).state_dict()
    per_layer = 2 * RANK * 16  # from 16 features to the rank, and from the rank to 16 features
    linear = 4 + 2  # queries, keys, values, output; two of the perceptron
    assert sum(value.numel() for value in state.values()) == linear * per_layer


def test_adapters_are_drawn_from_the_given_generator_and_never_from_the_global_one(encoder_files, tmp_path):
    encoder_files.write_folder(tmp_path, "resnet")
    HuggingFaceOptions(tmp_path).build(1, 8)  # transformers itself draws while it loads a model
    before = torch.get_rng_state()
    one = _built(tmp_path).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    same, other = _built(tmp_path).state_dict(), _built(tmp_path, seed=1).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    for name, value in one.items():
        up = name.endswith("up.weight")
        assert torch.equal(value, other[name]) == up
        assert value.abs().max() <= (0 if up else value[0].numel() ** -0.5)


def test_a_copy_has_adapters_of_its_own_and_shares_the_weights_of_the_files(encoder_files, tmp_path, images):
    encoder_files.write_folder(tmp_path, "dinov2")
    frozen, encoder = HuggingFaceOptions(tmp_path).build(1, 8), _drawn(tmp_path)
    copy, before = deepcopy(encoder), encoder(images).detach()
    for parameter in encoder.parameters():
        parameter.data.zero_()
    assert torch.equal(copy(images), before)
    places = [
        {value.data_ptr() for value in each._whole[0].state_dict().values()} for each in (encoder, copy)
    ]
    assert {value.data_ptr() for value in frozen.model.state_dict().values()} <= places[0] & places[1]


def test_a_batch_in_chunks_gives_the_gradient_of_the_whole(encoder_files, tmp_path, images):
    encoder_files.write_folder(tmp_path, "resnet")  # its norms do not use statistics of the batch
    gradients = []
    for size in (3, 1):
        encoder = _drawn(tmp_path).train()
        for part in images.split(size):
            (encoder(part) ** 3).sum().backward()
        gradients.append([parameter.grad for parameter in encoder.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_an_encoder_with_adapters_is_trained_and_in_files_of_each_machine(tmp_path):
    options = HuggingFaceOptions(tmp_path, adapters=RANK)
    assert not is_frozen(options)
    assert in_files(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "huggingface", "adapters": -1}, r"encoder\.adapters is -1: give a rank, or 0 for none"),
        ({"name": "huggingface", "adapters": 2, "layers": 1}, "adapters and encoder.layers are both set"),
        ({"name": "huggingface", "adapters": 2, "layers": "all"}, "adapters and encoder.layers are both set"),
        ({"name": "onnx", "adapters": 2}, "Unknown key in .encoder. 'adapters'"),
    ],
)
def test_other_combinations_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        parse({"encoder": options})


def test_a_folder_with_adapters_of_its_own_is_refused(encoder_files, tmp_path):
    encoder_files.write_folder(tmp_path, "dinov2")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "another/model"}')
    with pytest.raises(InputError, match=r"has adapters \(adapter_config\.json\), which are not read"):
        HuggingFaceOptions(tmp_path).resolve()
