"""Runs with a frozen pretrained encoder, from the recipe to reports and resumed runs."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from PIL import Image

from fedmcc.config import dump, load, parse, parse_text
from fedmcc.data.image_files import ImageFiles
from fedmcc.errors import InputError
from fedmcc.networks.onnx import OnnxEncoder
from fedmcc.runs.build import prepare, reopen
from fedmcc.runs.experiment import Scored, run, start_run, steps
from fedmcc.runs.predict import predict
from fedmcc.storage.safetensor_files import load_metadata, load_shapes

CLUSTERINGS = ["informative", "kmeans", "lloyd", "landmarks", "neighbours"]


@pytest.fixture
def encoder(encoder_files, tmp_path):
    return encoder_files.write_onnx(tmp_path / "tiny.onnx")


def _config(encoder, /, **sections):
    table = {"data": {"name": "digits", "limit": 90}, "partition": {"clients": 3}, "clusters": 4}
    return parse(table | {"encoder": {"name": "onnx", "path": str(encoder)}} | sections)


def test_a_frozen_encoder_is_followed_by_a_clustering_unless_the_recipe_says_otherwise(encoder):
    config = _config(encoder)
    assert type(config.method).__name__ == "Raw"
    assert config.clustering.stages()
    assert parse_text(dump(config)) == config


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_every_clustering_of_features_runs_and_sends_no_encoder(encoder, tmp_path, name):
    finished = run(_config(encoder, clustering={"name": name}), tmp_path / "run")
    assert finished.finished
    shapes = load_shapes(finished.model_file)
    assert not [key for key in shapes if key.startswith("online.encoder")]
    assert load_metadata(finished.model_file)["encoder_sha256"] == load(finished.config_file).encoder.sha256
    head = sum(8 * prod(shape) for shape in shapes.values())  # at most 8 bytes for each number
    assert all(0 < row["bytes_down"] <= 3 * (head + 8 * 90 * 6) for row in finished.rows())


def _stored_clusters(finished):
    header, *rows = (line.split(",") for line in finished.assignments_file.read_text().splitlines())
    return [int(row[header.index("cluster")]) for row in rows]


def test_the_run_is_scored_again_by_the_same_encoder_only(encoder, encoder_files, tmp_path):
    finished = run(_config(encoder), tmp_path / "run")
    trained = reopen(finished)
    clusters = trained.scorer.assign(trained.scorer.extract(trained.net.online)).clusters
    assert _stored_clusters(finished) == clusters.tolist()
    encoder_files.write_onnx(encoder, seed=1)
    with pytest.raises(InputError, match=r"tiny\.onnx is another encoder"):
        reopen(finished)
    encoder.unlink()
    with pytest.raises(InputError, match="There is no encoder at"):
        predict(finished, tmp_path)


def test_a_resumed_run_has_the_same_bits_and_needs_the_same_encoder(encoder, encoder_files, tmp_path):
    config = _config(encoder, clustering={"name": "lloyd"})
    whole = run(config, tmp_path / "whole")
    experiment = prepare(config)
    stopped = start_run(experiment, tmp_path / "stopped")
    events = steps(experiment, stopped)
    assert isinstance(next(event for event in events if isinstance(event, Scored)), Scored)
    events.close()
    for _ in steps(prepare(load(stopped.config_file)), stopped):
        pass
    assert stopped.model_file.read_bytes() == whole.model_file.read_bytes()
    encoder_files.write_onnx(encoder, seed=1)
    with pytest.raises(InputError, match="is another encoder"):
        prepare(load(stopped.config_file))


def test_clients_and_scores_use_features_that_were_computed_once(encoder, tmp_path, monkeypatch):
    count, original = [], OnnxEncoder.encode
    monkeypatch.setattr(OnnxEncoder, "encode", lambda self, x: count.append(len(x)) or original(self, x))
    run(_config(encoder, clustering={"name": "lloyd"}), tmp_path / "run")
    assert 90 <= sum(count) <= 90 + 2  # and black images, from which the number of features is found


def test_files_are_decoded_in_the_size_of_the_encoder(encoder, encoder_files, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(12):
        pixels = draw.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.jpg")
    data = {"name": "folder", "root": str(folder)}
    config = _config(encoder, data=data, clusters=3, partition={"clients": 1})
    assert isinstance(config.data, ImageFiles)
    assert config.data.size == 8
    finished = run(config, tmp_path / "run")
    assert load(finished.config_file).views.size == 8
    assert len(predict(finished, folder).csv.splitlines()) == 13
    assert _config(encoder, data=data | {"size": 16}).data.size == 16


def test_a_method_that_trains_the_encoder_is_refused(encoder):
    with pytest.raises(InputError, match=r"The encoder is frozen, but the stage representation trains it"):
        prepare(_config(encoder, method={"name": "fedmcc"}, training={"batch_size": 16}))


def test_a_trained_head_on_a_frozen_encoder_uses_features_of_views(encoder, tmp_path):
    config = _config(encoder, clustering={"name": "mcc", "rounds": 1}, training={"batch_size": 16})
    if config.method.stages():
        pytest.fail("the default method with a frozen encoder trains something")
    finished = run(config, tmp_path / "run")
    assert np.isfinite(finished.rows()[-1]["loss"])


def test_training_continues_from_the_last_layers_of_a_folder_and_only_they_travel(encoder_files, tmp_path):
    pytest.importorskip("transformers")
    encoder_files.write_folder(tmp_path / "folder", "dinov2")
    method = {"name": "fedsimclr", "rounds": 1, "epochs": 1, "hidden": 8, "projections": 8}
    encoder = {"name": "huggingface", "path": str(tmp_path / "folder"), "layers": 1}
    sections = {"method": method, "clustering": {"name": "kmeans"}, "training": {"batch_size": 16}}
    finished = run(_config(None, **sections, encoder=encoder), tmp_path / "run")
    names = [name for name in load_shapes(finished.model_file) if name.startswith("online.encoder")]
    assert names
    assert all(name.startswith("online.encoder.trained.") for name in names)
    trained = reopen(finished)
    clusters = trained.scorer.assign(trained.scorer.extract(trained.net.online), trained.net.online).clusters
    assert _stored_clusters(finished) == clusters.tolist()
    encoder_files.write_preprocessor(tmp_path / "folder", image_mean=[0.1, 0.1, 0.1])
    with pytest.raises(InputError, match="is another encoder"):
        reopen(finished)


def test_weights_of_torchvision_see_normalised_images_also_after_reopening(tmp_path):
    from safetensors.torch import save_file

    from fedmcc.networks.normalise import IMAGENET_MEAN, IMAGENET_STD
    from fedmcc.networks.resnet import ResNet18

    plain = ResNet18().build(3, 16)
    save_file(
        {key: value.contiguous() for key, value in plain.state_dict().items()}, tmp_path / "w.safetensors"
    )
    options = ResNet18(weights=tmp_path / "w.safetensors").resolve()
    images = torch.rand(2, 1, 16, 16)
    mean, std = (torch.tensor(value)[:, None, None] for value in (IMAGENET_MEAN, IMAGENET_STD))
    expected = plain.eval()((images.expand(-1, 3, -1, -1) - mean) / std)
    torch.testing.assert_close(options.build(1, 16).eval()(images), expected)
    reopened = replace(options, weights=None).build(1, 16)
    assert reopened.state_dict().keys() == plain.state_dict().keys()
