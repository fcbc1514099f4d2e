import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmcc.errors import InputError
from fedmcc.runs import clusters
from fedmcc.runs import predict as predict_module
from fedmcc.runs.clusters import Edits, load_edits, load_geometry, require_cluster, save_edits
from fedmcc.runs.directory import Run
from fedmcc.runs.predict import Predictor, predict
from fedmcc.runs.sorted_folders import sort_images

pytestmark = pytest.mark.slow  # takes seconds


@pytest.fixture
def run(folder_run, tmp_path):
    """A copy of a finished run, which a test may change."""
    return Run(Path(shutil.copytree(folder_run.path, tmp_path / "run")))


def _rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_merges_follow_each_other_and_take_names_along():
    edits = Edits().with_name(3, "  cracked\ntiles ").with_name(5, "sky").with_merged(3, [5])
    assert edits == Edits({3: "cracked tiles"}, {5: 3})
    assert edits.with_merged(1, [3]) == Edits({}, {5: 1, 3: 1})
    assert edits.with_name(3, "").names == {}
    with pytest.raises(InputError, match="300 characters"):
        edits.with_name(3, "x" * 300)
    with pytest.raises(InputError, match="not valid UTF-8"):
        edits.with_name(3, b"\xff".decode(errors="surrogateescape"))


def test_edits_are_read_as_written_and_damage_is_named(tmp_path):
    run, edits = Run(tmp_path), Edits({3: "Größe"}, {5: 3})
    save_edits(run, edits)
    assert load_edits(run) == edits
    for damaged in ('{"names": {"a": "b"}}', '{"merged": {"1": 2, "2": 1}}'):
        (tmp_path / "clusters.json").write_text(damaged)
        with pytest.raises(InputError, match="damaged"):
            load_edits(run)


def test_a_cluster_that_is_not_there_is_refused(tmp_path):
    edits = Edits(merged={2: 0})
    with pytest.raises(InputError, match="no cluster 4: give a number from 0 to 3"):
        require_cluster(Run(tmp_path), 4, edits, 4)
    with pytest.raises(InputError, match="Cluster 2 was merged into 0"):
        require_cluster(Run(tmp_path), 2, edits, 4)


def test_predictions_tables_and_scores_use_names_and_merges(run, image_folder):
    before = _rows(predict(run, image_folder).csv)
    used = sorted({int(row["cluster"]) for row in before})
    target, source = used[0], used[-1]
    save_edits(run, Edits().with_merged(target, [source]).with_name(target, "both"))
    clusters.rewrite(run)
    after = _rows(predict(run, image_folder).csv)
    assert after == _rows(run.assignments_file.read_text())
    for old, new in zip(before, after, strict=True):
        if int(old["cluster"]) in (target, source):
            assert (new["cluster"], new["name"]) == (str(target), "both")
        assert float(new["confidence"]) >= float(old["confidence"]) - 1e-4
    assert run.read_json("scores.json")["sizes"][source] == 0


def test_the_geometry_of_a_run_is_that_of_its_features(run, image_folder):
    geometry = load_geometry(run)
    rows = _rows(predict(run, image_folder).csv)
    assert geometry.centres.shape[0] == 4
    assert {row["kind"] for row in rows} == {"typical"}  # 24 images are too few for an alarm
    assert all(0 <= float(row["distance"]) <= 2 for row in rows)
    assert all(row["second"] != row["cluster"] for row in rows)


def test_blocks_do_not_change_predictions_and_a_run_without_geometry_predicts(run, image_folder, monkeypatch):
    predictor = Predictor.load(run)
    whole = "".join(predictor.lines(image_folder, "csv", {}))
    blocks = [*_with_blocks(predictor, 10).lines(image_folder, "csv", {})]
    assert len(blocks) == 3
    assert [row["cluster"] for row in _rows("".join(blocks))] == [row["cluster"] for row in _rows(whole)]
    run.geometry_file.unlink()
    assert list(_rows(predict(run, image_folder).csv)[0]) == ["image", "cluster", "confidence", "label"]


def _with_blocks(predictor, size):
    from dataclasses import replace

    evaluation = replace(predictor.settings.evaluation, batch_size=size)
    return replace(predictor, settings=replace(predictor.settings, evaluation=evaluation))


def test_json_lines_have_the_values_of_the_table(run, image_folder):
    import json

    predictor = Predictor.load(run)
    table = _rows("".join(predictor.lines(image_folder, "csv", {})))
    lines = "".join(predictor.lines(image_folder, "jsonl", {})).splitlines()
    for row, line in zip(table, lines, strict=True):
        values = json.loads(line)
        assert values["image"] == row["image"]
        assert values["cluster"] == int(row["cluster"])
        assert values["distance"] == pytest.approx(float(row["distance"]), abs=1e-4)
        assert values["label"] is None


def test_images_are_read_one_block_at_a_time(run, image_folder, monkeypatch):
    """Memory does not grow with the number of images: nothing is decoded before it is needed."""
    decoded = []
    decode_block = predict_module.decode_block
    monkeypatch.setattr(
        predict_module,
        "decode_block",
        lambda root, names, *given: decoded.append(names) or decode_block(root, names, *given),
    )
    lines = _with_blocks(Predictor.load(run), 10).lines(image_folder, "csv", {})
    assert decoded == []
    for count in (1, 2, 3):
        next(lines)
        assert [len(names) for names in decoded] == [10, 10, 4][:count]


def test_images_whose_names_are_not_text_are_named_and_a_full_disk_too(run, tmp_path, monkeypatch):
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "00.png").touch()
    target, missing = sort_images(run, tmp_path / "few", link=True)
    assert [path.name for path in target.rglob("*.png")] == ["00.png"]
    assert len(missing) == 23

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(InputError, match="No space left on device"):
        sort_images(run, tmp_path / "few", link=False)


@pytest.mark.parametrize("link", [False, True])
def test_images_are_sorted_into_a_folder_per_cluster(run, image_folder, link):
    before = {path.name: path.stat().st_mtime_ns for path in image_folder.iterdir()}
    target, missing = sort_images(run, image_folder, link)
    assert missing == []
    for row in _rows(run.assignments_file.read_text()):
        path = target / row["cluster"] / row["image"]
        assert path.is_symlink() == link
        assert path.read_bytes() == (image_folder / row["image"]).read_bytes()
    assert {path.name: path.stat().st_mtime_ns for path in image_folder.iterdir()} == before


def test_a_new_kind_of_image_gets_larger_distances(run, image_folder, tmp_path):
    draw = np.random.default_rng(0)
    (tmp_path / "noise").mkdir()
    for number in range(8):
        noise = draw.integers(256, size=(16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "noise" / f"{number}.png")
    own, noise = (
        np.mean([float(row["distance"]) for row in _rows(predict(run, path).csv)])
        for path in (image_folder, tmp_path / "noise")
    )
    assert noise > own
