"""Encoders in ONNX files: features, identity, and one sentence for every unusable file."""

from copy import deepcopy
from hashlib import sha256

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.networks import is_frozen, native_size
from fedmcc.networks.onnx import OnnxOptions


@pytest.fixture
def path(encoder_files, tmp_path):
    return encoder_files.write_onnx(tmp_path / "tiny.onnx")


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_those_of_the_graph_on_normalised_images(encoder_files, path, channels):
    images = torch.rand(5, channels, 8, 8)
    encoder = OnnxOptions(path).build(channels, 8)
    assert encoder.features == 6
    torch.testing.assert_close(encoder(images), encoder_files.onnx_features(images))


def test_features_do_not_depend_on_the_batch_or_on_threads(path):
    images, encoder = torch.rand(7, 3, 8, 8), OnnxOptions(path).build(3, 8)
    together = encoder(images)
    assert torch.equal(torch.cat([encoder(images[:3]), encoder(images[3:])]), together)
    torch.set_num_threads(2)
    try:
        assert torch.equal(encoder(images), together)
    finally:
        torch.set_num_threads(1)


def test_features_pass_through_unchanged(path):
    features = torch.rand(3, 6)
    assert OnnxOptions(path).build(3, 8)(features) is features


def test_weights_are_in_no_state_and_are_not_copied(path):
    encoder = OnnxOptions(path).build(3, 8)
    assert not encoder.state_dict()
    assert not list(encoder.parameters())
    assert deepcopy(encoder) is encoder


def test_the_identity_is_the_sha256_of_the_file(encoder_files, path, tmp_path):
    own = sha256(path.read_bytes()).hexdigest()
    assert OnnxOptions(path).resolve().sha256 == own
    other = encoder_files.write_onnx(tmp_path / "other.onnx", seed=1)
    with pytest.raises(InputError, match=rf"other\.onnx is another encoder: .* but {own[:16]}… is needed"):
        OnnxOptions(other, sha256=own).build(3, 8)


def test_size_and_statistics_come_from_the_recipe_if_the_file_has_none(encoder_files, tmp_path):
    bare = encoder_files.write_onnx(tmp_path / "bare.onnx", metadata={}, size="side")
    with pytest.raises(InputError, match=r"has no mean and std in its metadata: set encoder.mean"):
        OnnxOptions(bare).build(3, 8)
    options = OnnxOptions(bare, mean=tuple(encoder_files.MEAN), std=tuple(encoder_files.STD), size=12)
    assert native_size(options) == 12
    images = torch.rand(2, 3, 12, 12)
    torch.testing.assert_close(options.build(3, 12)(images), encoder_files.onnx_features(images))
    assert native_size(OnnxOptions(bare)) is None


def test_options_say_that_they_are_frozen_and_which_images_they_take(path):
    assert is_frozen(OnnxOptions(path))
    assert native_size(OnnxOptions(path)) == 8
    with pytest.raises(InputError, match=r"takes images of 8 pixels: set views.size"):
        OnnxOptions(path).build(3, 9)


def test_unusable_files_are_named_in_one_sentence(path, tmp_path):
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(path.read_bytes()[:-40])
    pickled = tmp_path / "model.pth"
    torch.save({"weight": torch.zeros(1)}, pickled)
    disguised = tmp_path / "model.onnx"
    disguised.write_bytes(pickled.read_bytes())
    for given, reason in [
        (cut, "truncated or not an ONNX file"),
        (disguised, "truncated or not an ONNX file"),
        (pickled, "is a pickle, which could run any code"),
        (tmp_path, "is a folder: set encoder.path to an ONNX file"),
        (tmp_path / "none.onnx", "There is no encoder at"),
        (None, "encoder.path is not set"),
    ]:
        with pytest.raises(InputError, match=reason):
            OnnxOptions(given).build(3, 8)


def test_statistics_that_are_not_three_positive_numbers_are_refused(encoder_files, tmp_path):
    stored = {"mean": [0.5, 0.5], "std": encoder_files.STD, "size": 8}
    wrong = encoder_files.write_onnx(tmp_path / "wrong.onnx", metadata=stored)
    with pytest.raises(InputError, match=r"The mean of an encoder is .*: give three numbers"):
        OnnxOptions(wrong).build(3, 8)
    with pytest.raises(InputError, match=r"give numbers above 0"):
        OnnxOptions(wrong, mean=(0.0, 0.0, 0.0), std=(1.0, 0.0, 1.0)).build(3, 8)
