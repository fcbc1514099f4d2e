"""Runs that train low-rank adapters of a pretrained folder: what travels, what is stored, what resumes."""

from math import prod

import pytest
from PIL import Image

from fedmcc.config import load, parse
from fedmcc.runs.build import prepare, reopen
from fedmcc.runs.experiment import Scored, run, start_run, steps
from fedmcc.runs.predict import predict
from fedmcc.storage.safetensor_files import load_shapes

pytest.importorskip("transformers")
pytest.importorskip("peft")
ADAPTERS = 6 * 2 * 2 * 16  # six linear layers, two factors of rank 2, 16 features
PROJECTOR = (16 * 8 + 8) + 4 * 8 + (8 * 8 + 8)  # linear, batch normalisation, linear
HEAD = (16 + 6 * 16) + 3 * 6 + 3 + 3 * 3 + 1  # whitening to 6 axes, 3 prototypes, sizes, groups, images
COUNTER = 8  # bytes: the number of batches of the normalisation


@pytest.fixture(scope="module")
def config(encoder_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    encoder_files.write_folder(folder, "dinov2")
    return parse(
        {
            "data": {"name": "digits", "limit": 40},
            "partition": {"clients": 2},
            "clusters": 3,
            "encoder": {"name": "huggingface", "path": str(folder), "adapters": 2},
            "method": {"name": "fedsimclr", "rounds": 2, "epochs": 1, "hidden": 8, "projections": 8},
            "clustering": {"name": "kmeans"},
            "training": {"batch_size": 10, "learning_rate": 0.01},
            "threads": 1,
        }
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return run(config, tmp_path_factory.mktemp("runs") / "run")


def test_of_the_encoder_only_adapters_travel_and_are_stored(finished):
    rows = [row for row in finished.rows() if row["stage"] == "representation"]
    expected = 4 * (ADAPTERS + PROJECTOR + HEAD) + COUNTER
    assert [row["bytes"] for row in rows] == [{"0": [expected] * 2, "1": [expected] * 2}] * 2
    shapes = load_shapes(finished.model_file)
    stored = [shape for name, shape in shapes.items() if name.startswith("online.encoder.")]
    assert sum(map(prod, stored)) == ADAPTERS


def test_adapters_are_trained_and_a_resumed_run_is_bit_identical(config, finished, tmp_path):
    experiment = prepare(config)
    stopped = start_run(experiment, tmp_path / "stopped")
    events = steps(experiment, stopped)
    next(event for event in events if isinstance(event, Scored))
    events.close()
    for _ in steps(prepare(load(stopped.config_file)), stopped):
        pass
    assert stopped.model_file.read_bytes() == finished.model_file.read_bytes()
    assert all(adapter.up.weight.any() for adapter in reopen(finished).net.online.encoder.trained)


def test_images_are_predicted_in_the_clusters_of_the_run(finished, tmp_path):
    for number, image in enumerate(reopen(finished).scorer.images.images):
        Image.fromarray(image[0]).save(tmp_path / f"{number:02}.png")
    predicted = predict(finished, tmp_path).csv
    assert len(set(_clusters(predicted))) > 1
    assert _clusters(predicted) == _clusters(finished.assignments_file.read_text())


def _clusters(csv):
    header, *rows = (line.split(",") for line in csv.splitlines())
    return [row[header.index("cluster")] for row in rows]
