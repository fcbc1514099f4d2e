"""Wrong input ends in one sentence and exit code 2, and changes no file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Command = Callable[..., Result]
Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("trainng.batch_size=8", "Did you mean 'training'"),
        ("training.batchsize=8", "Did you mean 'batch_size'"),
        ("training.batch_size=many", "training.batch_size is 'many'"),
        ("clusters=2.5", "clusters is 2.5"),
        ("clusters=1", "2 or more"),
        ("method.name=mmc", "Did you mean 'mcc'"),
        ("method.rounds=0", "1 or more"),
        ("method.epochs=-1", "1 or more"),
        ("encoder.name=convnt", "Did you mean 'convnet'"),
        ("data.name=digit", "Did you mean 'digits'"),
        ("data.limit=0", "data.limit is 0"),
        ("views.preset=fotos", "Did you mean 'photo'"),
        ("views.size=4", "views.size to 8 or more"),
        ("evaluation.split=test", "has no splits"),
        ("device=tpu", "no device 'tpu'"),
        ("method", "section.key=value"),
        ("=3", "section.key=value"),
        ("seed.x=1", "no key x"),
        ("clusters=301", "301 clusters of 300 images"),
    ],
)
def test_a_wrong_setting_is_named(refused: Refused, recipe: Path, setting: str, hint: str) -> None:
    assert hint in refused("run", recipe, "--out", "new", "--set", setting)


@pytest.mark.parametrize(
    ("content", "hint"),
    [(b"seed = ", "not valid TOML"), (b"sede = 3", "Did you mean 'seed'"), (b"\xff\xfe", "Cannot read")],
)
def test_a_wrong_recipe_is_named(refused: Refused, tmp_path: Path, content: bytes, hint: str) -> None:
    (tmp_path / "wrong.toml").write_bytes(content)
    assert hint in refused("run", "wrong.toml")


def test_a_missing_recipe_is_named(refused: Refused) -> None:
    assert "no recipe at nowhere.toml" in refused("run", "nowhere.toml")


def test_a_data_set_that_cannot_be_downloaded_can_be_put_in_place_by_hand(
    refused: Refused, recipe: Path
) -> None:
    message = refused("run", recipe, "--set", "data.name=mnist")
    assert "cannot be reached" in message
    assert "by hand" in message


def test_a_folder_without_images_is_refused(refused: Refused, tmp_path: Path, truncated: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty" in refused("run", "empty", "--set", "clusters=2")
    assert "half.png" in refused("run", truncated.parent, "--set", "clusters=2")


def test_a_folder_without_labels_needs_the_number_of_clusters(refused: Refused, pictures: Path) -> None:
    assert "--clusters 10" in refused("run", pictures)


def test_more_clusters_than_images_are_refused(refused: Refused, pictures: Path) -> None:
    assert "25 clusters of 24 images" in refused("run", pictures, "--set", "data.size=16", "--clusters", 25)


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("cluster", "pictures", "--clusters", "many"), "give a number, such as 10, or auto"),
        (("cluster", "pictures", "--clusters", 0), "--clusters is 0: give 2 or more, or auto"),
        (("cluster", "pictures", "--clusters", 1), "--clusters is 1: give 2 or more, or auto"),
        (("cluster", "pictures/00.png"), "is a file: give the folder that holds your images"),
        (("cluster", "pictures", "--clusters", 3, "--time", "soon"), "--time is 'soon'"),
        (("cluster", "pictures", "--clusters", 3, "--copy", "--link"), "choose one"),
        (("cluster", "pictures", "--clusters", 3, "--out", "pictures/run"), "is inside pictures"),
        (("cluster", "pictures", "--clusters", 99), "99 clusters of 24 files"),
        (("name", "run", 77, "x"), "no cluster 77"),
        (("merge", "run", 0, 0), "given twice"),
        (("split", "run", 77), "no cluster 77"),
        (("split", "run", 0, "--into", 1), "--into is 1: give 2 or more"),
        (("split", "run", 0, "--into", 999), "too few or too alike for 999 parts"),
        (("merge", "run", *range(10)), "merge fewer"),
    ],
)
def test_wrong_options_for_a_folder_and_its_clusters_are_named(
    refused: Refused, pictures: Path, run: Path, argv: tuple[object, ...], hint: str
) -> None:
    assert hint in refused(*argv)


def test_a_folder_of_no_or_one_image_cannot_be_clustered(refused: Refused, pictures: Path) -> None:
    Path("one").mkdir()
    (Path("one") / "00.png").write_bytes((pictures / "00.png").read_bytes())
    Path("none").mkdir()
    assert "is empty: put images in it" in refused("cluster", "none")
    assert "2 clusters of 1 image: lower clusters or give more images" in refused("cluster", "one")


def test_a_file_that_fedmcc_did_not_write_is_not_replaced(
    refused: Refused, run: Path, pictures: Path
) -> None:
    for name, argv in (("thesis.txt", ("predict", run, pictures)), ("thesis.html", ("report", run))):
        Path(name).write_text("three years of work")
        assert "use --force to replace it" in refused(*argv, "--out", name)


def test_an_out_folder_that_is_in_use_or_impossible_is_refused(
    refused: Refused, recipe: Path, run: Path
) -> None:
    assert "fedmcc resume" in refused("run", recipe, "--out", run)
    assert "not empty" in refused("run", recipe, "--out", run / "resume")
    assert "Choose another folder" in refused("run", recipe, "--out", run / "config.toml")
    assert "Choose another folder" in refused("run", recipe, "--out", run / "config.toml" / "below")


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("--protocol", "knn,liner"), "Unknown protocol 'liner'. Did you mean 'linear'?"),
        (("--protocol", "knn", "--seeds", 0), "give 1 or more"),
        (("--seeds", 3), "--protocol"),
        (("--protocol", "knn", "--checkpoint", "nowhere.safetensors"), "no checkpoint at nowhere"),
        (("--protocol", "knn", "--checkpoint", "tiny.toml"), "not a safetensors file"),
    ],
)
def test_a_wrong_option_of_evaluate_is_named(
    refused: Refused, recipe: Path, run: Path, argv: tuple[object, ...], hint: str
) -> None:
    assert hint in refused("evaluate", run, *argv)


def test_an_image_that_cannot_be_predicted_is_named(refused: Refused, run: Path, truncated: Path) -> None:
    assert "half.png" in refused("predict", run, truncated)
    assert "nowhere.png" in refused("predict", run, "nowhere.png")
    assert "config.toml" in refused("predict", run, run / "config.toml")


def test_a_table_that_cannot_be_written_is_refused(refused: Refused, run: Path, pictures: Path) -> None:
    assert "Choose another" in refused("predict", run, pictures, "--out", run)
    assert "Choose another" in refused("predict", run, pictures, "--out", run / "config.toml" / "t.csv")


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("list", "method"), "Did you mean 'methods'"),
        (("views", "digits", "--out", "views.jpg"), "ends in .png"),
        (("views", "digits", "--out", "v.png", "--preset", "medicine"), "preset of views 'medicine'"),
        (("views", "digts", "--out", "v.png"), "Did you mean 'digits'"),
        (("resume", "."), "not a run directory"),
        (("plot", ".", "--out", "figures"), "not a run directory"),
    ],
)
def test_other_commands_name_the_mistake_too(refused: Refused, argv: tuple[str, ...], hint: str) -> None:
    assert hint in refused(*argv)


def test_a_full_disk_is_one_sentence_and_exit_code_1(
    fedmcc: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = fedmcc("run", recipe, "--out", "new")
    assert result.exit_code == 1
    assert "no space left on the disk: free some" in result.stderr
    assert result.stderr.count("Error: ") == 1


def test_a_diverging_run_is_one_sentence_and_exit_code_1(fedmcc: Command, recipe: Path) -> None:
    result = fedmcc("run", recipe, "--out", "new", "--set", "training.learning_rate=1e30")
    assert result.exit_code == 1
    assert "lower training.learning_rate" in result.stderr


def test_a_simulation_does_not_start_in_the_folder_of_another_run(
    refused: Refused, recipe: Path, run: Path
) -> None:
    assert "is not empty" in refused("run", recipe, "--engine", "flower-simulation", "--out", run)


@pytest.mark.parametrize("option", ["--profile", "--tensorboard"])
def test_options_that_a_simulation_does_not_support_are_refused(
    refused: Refused, recipe: Path, option: str
) -> None:
    assert f"{option} does not work" in refused("run", recipe, "--engine", "flower-simulation", option)


def test_an_invalid_simulation_is_refused_before_it_starts(refused: Refused, recipe: Path) -> None:
    argv = ("--set", "partition.clients=2", "--set", "federation.count=9")
    assert "federation.count" in refused("run", recipe, "--engine", "flower-simulation", *argv)
