"""Encoders in folders of the Hugging Face hub: features, identity, and one sentence for every bad folder."""

import json

import pytest
import torch

from fedmcc.errors import InputError
from fedmcc.networks import native_size
from fedmcc.networks.huggingface import HuggingFaceOptions

pytest.importorskip("transformers")


def _normalised(encoder_files, images):
    mean, std = (torch.tensor(value)[:, None, None] for value in (encoder_files.MEAN, encoder_files.STD))
    return (images.expand(-1, 3, -1, -1) - mean) / std


@pytest.mark.parametrize("kind", ["dinov2", "clip", "siglip", "convnext", "resnet", "vit"])
def test_features_are_the_pooled_output_of_the_saved_model(encoder_files, tmp_path, kind):
    model, images = encoder_files.write_folder(tmp_path, kind), torch.rand(3, 1, 8, 8)
    encoder = HuggingFaceOptions(tmp_path).build(1, 8)
    with torch.no_grad():
        outputs = model(pixel_values=_normalised(encoder_files, images))
    expected = outputs.last_hidden_state[:, 0] if kind == "vit" else outputs.pooler_output.flatten(1)
    assert encoder.features == 16
    torch.testing.assert_close(encoder(images), expected)
    assert not encoder.state_dict()
    assert not list(encoder.parameters())


@pytest.fixture(scope="module")
def saved(encoder_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    encoder_files.write_folder(folder, "clip")
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_the_identity_covers_weights_and_preprocessing_and_nothing_else(encoder_files, folder):
    own = HuggingFaceOptions(folder).resolve().sha256
    (folder / "README.md").write_text("a description")
    assert HuggingFaceOptions(folder).resolve().sha256 == own
    encoder_files.write_preprocessor(folder, image_mean=[0.1, 0.1, 0.1])
    with pytest.raises(InputError, match=f"is another encoder: .* but {own[:16]}… is needed"):
        HuggingFaceOptions(folder, sha256=own).build(3, 8)


def test_the_size_is_that_of_the_preprocessor(encoder_files, folder):
    assert native_size(HuggingFaceOptions(folder)) == 8
    with pytest.raises(InputError, match=r"takes images of 8 pixels"):
        HuggingFaceOptions(folder).build(3, 12)
    encoder_files.write_preprocessor(folder, do_center_crop=False)
    assert native_size(HuggingFaceOptions(folder)) == 9


def _edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SPOILED = {
    "has code": lambda folder: (folder / "modeling.py").write_text("raise SystemExit"),
    "asks for code of its own": lambda folder: _edit(folder / "config.json", auto_map={"AutoModel": "m.M"}),
    "only in a pickle": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "truncated or not a safetensors": lambda folder: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:-8]
    ),
    "has no preprocessor_config.json": lambda folder: (folder / "preprocessor_config.json").unlink(),
    "truncated or not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "is a model of type 'bert'": lambda folder: _edit(folder / "config.json", model_type="bert"),
    "The mean of an encoder is None": lambda folder: _edit(
        folder / "preprocessor_config.json", image_mean=None
    ),
    "has no image_mean": lambda folder: (folder / "preprocessor_config.json").write_text('{"size": 8}'),
    "has no image size": lambda folder: _edit(folder / "preprocessor_config.json", crop_size="large"),
}


@pytest.mark.parametrize("reason", SPOILED)
def test_an_unusable_folder_is_named_in_one_sentence(folder, reason):
    SPOILED[reason](folder)
    with pytest.raises(InputError, match=reason):
        HuggingFaceOptions(folder).build(3, 8)


def test_weights_of_another_model_are_refused(encoder_files, folder, tmp_path):
    other = tmp_path / "other"
    encoder_files.write_folder(other, "dinov2")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"lack .*: fetch config.json and weights of one model"):
        HuggingFaceOptions(folder).build(3, 8)
