"""An exported file computes what the run computes, says what it is, and replaces nothing by mistake."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data.digits import Digits
from fedmcc.errors import InputError
from fedmcc.networks import ENCODERS
from fedmcc.networks.heads import cluster_projector
from fedmcc.networks.momentum import Branch
from fedmcc.networks.onnx import OnnxOptions
from fedmcc.runs import experiment, export
from fedmcc.runs.clusters import Edits, save_edits
from fedmcc.runs.corrections import split_cluster
from fedmcc.runs.directory import Run
from fedmcc.runs.export import export_onnx
from fedmcc.runs.export_network import ExportedNetwork, Resize, merging
from fedmcc.runs.predict import Predictor
from fedmcc.views.pipeline import Views

pytestmark = pytest.mark.slow  # takes seconds

TABLE = {
    "clusters": 10,
    "device": "cpu",
    "threads": 1,
    "data": {"name": "digits", "limit": 100},
    "views": {"size": 16},
    "encoder": {"width": 4},
    "training": {"batch_size": 50},
    "method": {"rounds": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose images of 8 pixels are enlarged to 16, with a name, a merge and a split."""
    run = experiment.run(parse(TABLE), tmp_path_factory.mktemp("runs") / "run")
    save_edits(run, Edits({1: "zwölf"}, {4: 1}))
    split_cluster(run, 1, 2)
    run.write_json("scores.json", run.read_json("scores.json") | {"clusters": 11})
    return run


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    return export_onnx(run, tmp_path_factory.mktemp("exported") / "digits.onnx")


def test_onnxruntime_agrees_with_the_run_on_real_images_in_batches_of_any_size(run, exported):
    images = Digits().load()
    session = onnxruntime.InferenceSession(exported.model)
    expected = Predictor.load(run).assign(images)
    for rows in (slice(0, 1), slice(1, 7), slice(7, None)):
        soft, clusters, _ = session.run(None, {"images": images.images[rows]})
        own = np.take_along_axis(soft, expected.clusters[rows, None], axis=1)[:, 0]
        assert np.abs(own - expected.confidence[rows]).max() < 1e-4
        assert (clusters == expected.clusters[rows]).mean() > 0.999  # ties may be decided either way
        assert np.abs(soft.sum(axis=1) - 1).max() < 1e-5
        assert (soft[:, 4] == 0).all()  # merged into cluster 1
    assert exported.difference < 1e-4


def test_the_metadata_say_what_the_file_is(run, exported):
    model = onnx.load(exported.model)
    onnx.checker.check_model(model, full_check=True)
    stored = {prop.key: prop.value for prop in model.metadata_props}
    clusters = json.loads(stored["clusters"])
    assert clusters["1"] == "zwölf"
    assert sorted(map(int, clusters)) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert json.loads(stored["classes"]) == [*"0123456789"]
    assert len(stored["config_sha256"]) == 64
    assert stored["input"] == "uint8, n x 1 x 8 x 8, 0 to 255"
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_the_card_has_data_scores_limits_licence_and_code_that_runs(run, exported, tmp_path, monkeypatch):
    from PIL import Image

    text = exported.card.read_text()
    for heading in ("Use", "Data", "Clusters", "Scores", "Limits", "Licence"):
        assert f"\n## {heading}\n" in text
    assert "| 1 | zwölf |" in text
    assert f"{run.read_json('scores.json')['scores']['head']['acc']:.3f}: ACC" in text
    assert str(run.path) not in text
    monkeypatch.chdir(exported.model.parent)
    Image.fromarray(np.zeros((30, 20, 3), np.uint8)).save("image.jpg")
    names = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert names["assignments"].shape == (1, 11)


def test_other_files_are_replaced_only_by_force_and_own_ones_always(run, exported, tmp_path, monkeypatch):
    own, other = tmp_path / "own.onnx", tmp_path / "other.onnx"
    shutil.copy(exported.model, own)
    other.write_bytes(b"something else")
    monkeypatch.setattr(export, "_to_onnx", lambda *_: onnx.load(exported.model))  # saves seconds
    with pytest.raises(InputError, match="use --force"):
        export_onnx(run, other)
    assert other.read_bytes() == b"something else"
    assert export_onnx(run, own).model == own
    export_onnx(run, other, force=True)
    assert other.read_bytes()[:40] == own.read_bytes()[:40]


def test_a_missing_package_and_a_wrong_result_are_refused(run, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(
        InputError, match=r"no_such_package: install it with `pip install 'fedmcc\[export\]'`"
    ):
        export_onnx(run, tmp_path / "new.onnx")
    monkeypatch.setattr(export, "PACKAGES", ())
    wrong = onnx.load(exported.model)
    for value in wrong.graph.initializer:
        if list(value.dims) in ([10, 10], [11, 11]):  # the merges
            size = value.dims[0]
            value.CopyFrom(onnx.numpy_helper.from_array(np.eye(size, dtype=np.float32), value.name))
    monkeypatch.setattr(export, "_to_onnx", lambda *_: wrong)
    with pytest.raises(InputError, match="nothing was written"):
        export_onnx(run, tmp_path / "new.onnx")
    assert not any(tmp_path.iterdir())


def test_a_run_that_is_not_complete_is_refused(run, tmp_path):
    copy = Run(shutil.copytree(run.path, tmp_path / "copy"))
    copy.scores_file.unlink()
    with pytest.raises(InputError, match="not complete"):
        export_onnx(copy, tmp_path / "new.onnx")


def test_a_table_that_is_not_text_is_refused(run, tmp_path):
    copy = Run(shutil.copytree(run.path, tmp_path / "copy"))
    with copy.assignments_file.open("ab") as file:
        file.write(b"caf\xe9.png,1,,\n")
    with pytest.raises(InputError, match=r"assignments\.csv is damaged"):
        export_onnx(copy, tmp_path / "digits.onnx")


def test_an_exported_file_is_no_encoder(exported):
    with pytest.raises(InputError, match="was written by `fedmcc export` and is not an encoder"):
        OnnxOptions(exported.model).build(1, 16)


@pytest.mark.parametrize(("sides", "size"), [((20, 24), 8), ((8, 8), 13), ((16, 9), 16)])
def test_resizing_by_matrices_is_that_of_views(sides, size):
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=(5, 3, *sides), dtype=np.uint8))
    resized = Resize(sides, size)(images.float() / 255)
    assert torch.allclose(resized, Views(size=size).plain(images), atol=2e-6)


def test_merging_adds_columns():
    soft = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    assert torch.allclose(soft @ merging(4, {1: 3, 2: 3}), torch.tensor([[0.1, 0.0, 0.0, 0.9]]))


@pytest.mark.parametrize("name", ["convnet", "resnet18", "pixels"])
def test_every_trained_encoder_gives_the_same_assignments_in_its_exported_form(name):
    encoder = ENCODERS[name]().build(channels=1, size=16)
    branch = Branch(encoder, None, cluster_projector(encoder.features, 8, 3)).eval()
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=(4, 1, 16, 16), dtype=np.uint8))
    soft, clusters, _ = ExportedNetwork(branch, torch.nn.Identity(), Edits())(images)
    expected = branch.assign(branch.encoder(images.float() / 255))
    assert torch.allclose(soft, expected, atol=1e-5)
    assert torch.equal(clusters, soft.argmax(dim=1))


@pytest.mark.parametrize("kind", ["onnx", "huggingface"])
def test_a_pretrained_encoder_is_part_of_the_file(encoder_files, tmp_path, kind):
    path = tmp_path / "encoder.onnx" if kind == "onnx" else tmp_path / "encoder"
    encoder_files.write_onnx(path) if kind == "onnx" else encoder_files.write_folder(path, "dinov2")
    data = {"name": "digits", "limit": 60}
    table = {"clusters": 3, "threads": 1, "data": data, "encoder": {"name": kind, "path": str(path)}}
    run = experiment.run(parse(table), tmp_path / "run")
    exported = export_onnx(run, tmp_path / "exported.onnx")
    expected = Predictor.load(run).assign(Digits(limit=60).load())
    shutil.rmtree(path) if path.is_dir() else path.unlink()  # the file must not need it
    session = onnxruntime.InferenceSession(exported.model)
    soft = session.run(["assignments"], {"images": Digits(limit=60).load().images})[0]
    assert np.abs(soft.max(axis=1) - expected.confidence).max() < 1e-4
    assert "the pretrained encoder `encoder" in exported.card.read_text()
