"""Pretrained folders of which the last layers or all of them are trained, sent and stored."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import normalize

from fedmcc.errors import InputError
from fedmcc.networks import in_files, is_frozen
from fedmcc.networks.fine_tuned import last_layers
from fedmcc.networks.huggingface import HuggingFaceOptions

pytest.importorskip("transformers")
KINDS = ["dinov2", "clip", "siglip", "convnext", "resnet", "vit"]


@pytest.fixture
def images():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, "all"])
def test_before_training_features_are_those_of_the_frozen_encoder(
    encoder_files, tmp_path, images, kind, layers
):
    encoder_files.write_folder(tmp_path, kind)
    encoder = HuggingFaceOptions(tmp_path, layers=layers).build(1, 8).eval()
    frozen = HuggingFaceOptions(tmp_path).build(1, 8)
    torch.testing.assert_close(encoder(images), frozen(images))
    assert encoder.features == frozen.features
    assert encoder.identity == frozen.identity


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_has_the_last_layers_and_what_follows_them_but_not_the_first(encoder_files, tmp_path, kind):
    model = encoder_files.write_folder(tmp_path, kind)
    encoder = HuggingFaceOptions(tmp_path, layers=1).build(1, 8)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (encoder, model)]
    assert 0 < sizes[0] < sizes[1]
    first = next(model.parameters())
    assert not any(p.shape == first.shape and torch.equal(p, first) for p in encoder.parameters())


def test_the_last_layers_of_a_nested_list_come_with_the_norms_after_it():
    block = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))})
    block["norm"] = torch.nn.LayerNorm(2)
    model = torch.nn.ModuleDict(
        {"stem": torch.nn.Linear(2, 2), "encoder": block, "head": torch.nn.Linear(2, 1)}
    )
    layers = model["encoder"]["layers"]
    assert last_layers(model, 2) == [layers[1], layers[2], block["norm"], model["head"]]
    assert last_layers(model, None) == [model]


def test_only_the_last_layers_are_trained_and_copies_share_the_others(encoder_files, tmp_path, images):
    encoder_files.write_folder(tmp_path, "dinov2")
    encoder = HuggingFaceOptions(tmp_path, layers=1).build(1, 8)
    copy, before = deepcopy(encoder), encoder(images).detach()
    optimizer = torch.optim.SGD(encoder.requires_grad_(True).parameters(), 1.0)
    normalize(encoder(images), dim=1)[:, 0].sum().backward()
    optimizer.step()
    assert not torch.allclose(encoder(images), before)
    torch.testing.assert_close(copy(images), before)
    whole, other = (each._whole[0].state_dict() for each in (encoder, copy))
    shared = {name for name, value in whole.items() if value.data_ptr() == other[name].data_ptr()}
    assert shared == {name for name in whole if name.startswith("embeddings")}


def test_an_encoder_that_is_trained_is_not_frozen_but_in_files_of_each_machine(tmp_path):
    assert is_frozen(HuggingFaceOptions(tmp_path))
    assert not is_frozen(HuggingFaceOptions(tmp_path, layers="all"))
    assert in_files(HuggingFaceOptions(tmp_path, layers=2))
    with pytest.raises(InputError, match=r"encoder\.layers is -1: give 0 or more, or all"):
        HuggingFaceOptions(layers=-1)
