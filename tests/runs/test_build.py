from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError
from fedmcc.runs import build
from fedmcc.runs.build import assemble, build_network, prepare
from fedmcc.runs.resolve import resolve
from fedmcc.runs.scoring import make_scorer

SMALL = {"device": "cpu", "threads": 1, "encoder": {"width": 4}, "training": {"batch_size": 8}}


def _images(n=20, labels=None, size=8, channels=1):
    pixels = np.random.default_rng(0).integers(
        0, 256, (n, channels, *np.broadcast_to(size, 2)), dtype=np.uint8
    )
    return ImageSet(pixels, labels)


def _config(**table):
    return parse(SMALL | table)


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ({"method": {"name": "mcc"}}, "Raise method.entropy_weight or choose views that fit the images."),
        (
            {"method": {"name": "fedsimclr"}, "clustering": {"name": "cc"}},
            "Raise clustering.entropy_weight or choose views that fit the images.",
        ),
        ({"method": {"name": "iic"}}, "Choose views that fit the images."),
        (
            {"method": {"name": "fedmcc"}},
            "Choose views that fit the images.",
        ),  # informative weights no entropy
        ({"encoder": {"name": "onnx", "path": "any.onnx"}}, "Choose another encoder or fewer clusters."),
    ],
)
def test_the_remedy_for_collapsed_clusters_is_an_option_that_the_method_reads(table, remedy):
    assert make_scorer(parse({"clusters": 2, **table}), _images()).remedy == remedy


def _refused(config, images):
    with pytest.raises(InputError) as caught:
        assemble(config, images)
    return str(caught.value)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({}, "set the number of clusters"),
        ({"clusters": 21}, "21 clusters of 20 images"),
        ({"clusters": 2, "method": {"rounds": 0}}, "method.rounds"),
        ({"clusters": 2, "device": "gpu"}, "There is no device 'gpu'"),
    ],
)
def test_a_configuration_is_resolved_and_checked_before_anything_is_built(table, sentence, monkeypatch):
    monkeypatch.setattr(build, "build_network", None)
    assert sentence in _refused(_config(**table), _images())


def test_images_too_small_for_the_encoder_are_refused():
    assert "too small" in _refused(_config(clusters=2), _images(size=5))


def test_the_scored_split_is_the_configured_one(monkeypatch):
    config = _config(clusters=2, data={"name": "mnist"}, evaluation={"split": "test"})
    monkeypatch.setattr(type(config.data), "load", lambda self: replace(_images(n=9), split=self.split))
    experiment = prepare(config)
    assert (experiment.images.split, experiment.scorer.images.split) == (config.data.split, "test")
    assert prepare(_config(clusters=2)).scorer.images.split == "all"  # the training images (D15)


def test_a_split_of_a_data_set_without_splits_is_refused():
    sentence = _refused(_config(clusters=2, evaluation={"split": "test"}), _images())
    assert sentence == "evaluation.split is 'test', but this data set has no splits: leave it out."


def test_building_a_network_does_not_change_the_global_generator():
    config, before = resolve(_config(clusters=3), _images()), torch.get_rng_state()
    build_network(config, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_the_seed_alone_decides_the_first_weights():
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
    config = _config(partition={"clients": 2}, training={"batch_size": 4})
    clients = assemble(config, _images(labels=np.arange(20) % 4)).engine.clients
    assert sorted(clients) == [0, 1]
    for client in clients.values():
        assert not any(isinstance(getattr(client, field.name), ImageSet) for field in fields(client))
        assert client.images.dtype == np.uint8
