import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedmcc.config import parse
from fedmcc.data.synthetic import Synthetic
from fedmcc.errors import InputError
from fedmcc.runs import experiment
from fedmcc.runs.checkpoints import load_state, save_state
from fedmcc.runs.predict import predict

pytestmark = pytest.mark.slow  # takes seconds

SMALL = {
    "clusters": 3,
    "device": "cpu",
    "threads": 1,
    "encoder": {"width": 4},
    "training": {"batch_size": 8},
    "method": {"rounds": 1},
}


@pytest.fixture(scope="module")
def drawn():
    return Synthetic(samples=16, size=24).load().images


@pytest.fixture
def folder(tmp_path, drawn):
    """Images of 30 by 24 px, one of them in a subfolder."""
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for number, image in enumerate(drawn):
        subfolder = "deep/" if number == 3 else ""
        picture = Image.fromarray(image.transpose(1, 2, 0)).resize((30, 24))
        picture.save(tmp_path / "images" / f"{subfolder}{number:02}.png")
    return tmp_path / "images"


@pytest.fixture
def run(tmp_path, folder):
    """A run whose images are decoded at 20 px and whose views have 8 px."""
    data, views = {"name": "folder", "root": str(folder), "size": 20}, {"size": 8}
    return experiment.run(parse(SMALL | {"data": data, "views": views}), tmp_path / "run")


def _rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_images_of_the_run_get_the_clusters_and_confidences_of_the_run(run, folder):
    predicted = predict(run, folder)
    assert predicted.skipped is None
    own = _rows(run.assignments_file.read_text())
    assert [{key: row[key] for key in own[0]} for row in _rows(predicted.csv)] == own


def test_one_image_is_assigned_as_it_is_among_others(run, folder):
    (alone,) = _rows(predict(run, folder / "05.png").csv)
    among = {row["image"]: row for row in _rows(predict(run, folder).csv)}
    assert alone["image"] == "05.png"
    assert alone["cluster"] == among["05.png"]["cluster"]
    assert float(alone["confidence"]) == pytest.approx(float(among["05.png"]["confidence"]), abs=2e-4)


def test_a_damaged_file_is_skipped_and_named(run, folder):
    whole = (folder / "02.png").read_bytes()
    (folder / "02.png").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("not an image")
    predicted = predict(run, folder)
    assert [row["image"] for row in _rows(predicted.csv)].count("02.png") == 0
    assert len(_rows(predicted.csv)) == 15
    assert predicted.skipped.startswith("Skipped 2 unreadable files: ")
    assert "02.png" in predicted.skipped


def test_grey_images_are_converted_to_the_channels_of_the_run(run, tmp_path):
    (tmp_path / "grey").mkdir()
    Image.fromarray(np.full((40, 60), 90, dtype=np.uint8)).save(tmp_path / "grey" / "a.jpg")
    (row,) = _rows(predict(run, tmp_path / "grey").csv)
    assert row["cluster"] in {"0", "1", "2"}


def test_a_run_on_arrays_predicts_files_too(tmp_path, folder):
    data = {"name": "synthetic", "samples": 16, "size": 8}
    run = experiment.run(parse(SMALL | {"data": data}), tmp_path / "run")
    assert len(_rows(predict(run, folder).csv)) == 16


def test_images_of_a_run_on_oblong_arrays_get_the_clusters_of_the_run(tmp_path):
    """Images are resized as a whole, not cropped to a square."""
    images = np.random.default_rng(0).integers(0, 256, (16, 10, 24), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    (tmp_path / "files").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "files" / f"{number:02}.png")
    data = {"name": "arrays", "root": str(tmp_path / "images.npy")}
    run = experiment.run(parse(SMALL | {"data": data}), tmp_path / "run")
    own, predicted = _rows(run.assignments_file.read_text()), _rows(predict(run, tmp_path / "files").csv)
    for key in ("cluster", "confidence"):
        assert [row[key] for row in predicted] == [row[key] for row in own]


def test_a_path_without_images_is_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.png").write_text("not an image")
    for path, sentence in (
        ("absent", "There is no image or folder at"),
        ("empty", "is empty"),
        ("text.png", "text.png is not a readable image"),
    ):
        with pytest.raises(InputError, match=sentence):
            predict(run, tmp_path / path)


def test_a_checkpoint_that_does_not_fit_is_refused(run, folder):
    state = load_state(run.model_file)
    save_state(run.model_file, state)  # without metadata
    with pytest.raises(InputError, match="lacks the number of channels: use the file that the run wrote"):
        predict(run, folder)
    name = "online.instance_projector.0.bias"
    save_state(run.model_file, state | {name: state[name][:3]}, {"channels": "3"})
    with pytest.raises(InputError, match="is of another architecture"):
        predict(run, folder)


def test_an_unfinished_run_cannot_predict(run, folder):
    run.model_file.unlink()
    with pytest.raises(InputError, match="There is no checkpoint at"):
        predict(replace(run), folder)
