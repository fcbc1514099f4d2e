import os
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.runs.build import assemble, build_network, prepare
from fedmcc.runs.resolve import find_device, resolve

SMALL = {"device": "cpu", "threads": 1, "encoder": {"width": 4}, "training": {"batch_size": 8}}


def _images(n=20, labels=None, size=8, channels=1):
    pixels = np.random.default_rng(0).integers(
        0, 256, (n, channels, *np.broadcast_to(size, 2)), dtype=np.uint8
    )
    return ImageSet(pixels, labels)


def _config(**table):
    return parse(SMALL | table)


def _refused(config, images):
    with pytest.raises(InputError) as caught:
        assemble(config, images)
    return str(caught.value)


def test_everything_that_was_open_is_filled_in():
    labels = np.array([0, 1, 2, -1] * 5)
    found = resolve(parse({}), _images(labels=labels, size=(12, 9)))
    assert found.general.clusters == 3  # -1 is no class
    assert found.views.size == 9
    assert found.general.threads == os.cpu_count()
    assert found.general.device in ("cpu", str(torch.accelerator.current_accelerator()))
    assert found.training.keep_optimizer is True  # D14: alone


def test_what_was_given_stays():
    table = {"clusters": 5, "views": {"size": 16}, "training": {"keep_optimizer": False}, "threads": 1}
    found = resolve(parse(table), _images(labels=np.arange(20)))
    assert (found.general.clusters, found.general.threads, found.views.size) == (5, 1, 16)
    assert found.training.keep_optimizer is False


def test_a_resolved_configuration_resolves_to_itself():
    images = _images(labels=np.arange(20) % 4)
    once = resolve(_config(), images)
    assert resolve(once, images) == once


@pytest.mark.parametrize("labels", [None, np.full(20, -1), np.zeros(20, dtype=np.int64)])
def test_without_labels_the_number_of_clusters_must_be_given(labels):
    assert "set the number of clusters with --set clusters=10" in _refused(_config(), _images(labels=labels))
    assert assemble(_config(clusters=3), _images(labels=labels)).config.general.clusters == 3


def test_more_clusters_than_images_are_refused():
    assert _refused(_config(clusters=21), _images()).startswith("21 clusters of 20 images: lower clusters")


def test_a_batch_larger_than_the_data_is_refused():
    sentence = _refused(_config(clusters=2), _images(n=7))
    assert sentence.startswith("training.batch_size is 8 and there are 7 images")


@pytest.mark.parametrize("field", ["rounds", "epochs"])
def test_a_stage_without_rounds_or_epochs_is_refused(field):
    assert f"method.{field}" in _refused(_config(clusters=2, method={field: 0}), _images())


@pytest.mark.parametrize("name", ["gpu", "cuda:77", "meta", "hpu", "", "cpu cuda"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(
        InputError, match=f"There is no device '{name}' on this machine: set device to auto or cpu"
    ):
        find_device(name)


def test_auto_is_a_device_that_works():
    assert torch.zeros(1, device=find_device("auto")).item() == 0


def test_images_too_small_for_the_encoder_are_refused():
    assert "too small" in _refused(_config(clusters=2), _images(size=5))


def test_the_scored_split_is_the_one_asked_for(monkeypatch):
    config = _config(clusters=2, data={"name": "mnist"}, evaluation={"split": "test"})
    monkeypatch.setattr(type(config.data), "load", lambda self: replace(_images(n=9), split=self.split))
    experiment = prepare(config)
    assert (experiment.images.split, experiment.scorer.images.split) == (config.data.split, "test")
    assert prepare(_config(clusters=2)).scorer.images.split == "all"  # the images trained on (D15)


def test_a_split_of_a_data_set_without_splits_is_refused():
    sentence = _refused(_config(clusters=2, evaluation={"split": "test"}), _images())
    assert sentence == "evaluation.split is 'test', but this data set has no splits: leave it out."


def test_building_a_network_leaves_the_global_generator_alone():
    config, before = resolve(_config(clusters=3), _images()), torch.get_rng_state()
    build_network(config, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_same_seed_same_weights_whatever_the_global_generator_says():
    config, states = resolve(_config(clusters=3), _images()), []
    for _ in range(2):
        states.append(build_network(config, 1).state_dict())
        torch.rand(3)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    other = build_network(replace(config, general=replace(config.general, seed=1)), 1).state_dict()
    weights = [name for name in other if name.startswith("online.") and name.endswith("weight")]
    weights = [name for name in weights if other[name].ndim > 1]
    assert not any(torch.equal(states[0][name], other[name]) for name in weights)


def test_every_method_starts_from_the_same_online_branch():
    states = []
    for name in ("cc", "mcc"):
        net = build_network(resolve(_config(clusters=3, method={"name": name}), _images()), 1)
        states.append(net.online.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_clients_get_images_without_labels():
    experiment = assemble(_config(), _images(labels=np.arange(20) % 4))
    for client in experiment.engine.clients.values():
        assert not any(isinstance(getattr(client, field.name), ImageSet) for field in fields(client))
        assert client.images.dtype == np.uint8
