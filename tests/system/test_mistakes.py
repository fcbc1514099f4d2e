"""Wrong input ends in one sentence and exit code 2, and changes no file."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Command = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


def contents(folder: Path) -> dict[str, bytes]:
    """Content of every file in a folder, except the cache."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: content for name, content in named.items() if not name.startswith("cache/")}


@pytest.fixture
def refused(fedmcc: Command, tmp_path: Path) -> Callable[..., str]:
    """Runs a command that must fail because of its input; returns the error."""

    def run(*argv: object) -> str:
        before = contents(tmp_path)
        result = fedmcc(*argv)
        assert contents(tmp_path) == before
        return sentence(result.exit_code, result.stderr)

    return run


def sentence(code: int, err: str) -> str:
    """The one line with the error."""
    assert code == 2, err
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, err
    assert errors[0].endswith((".", "?"))
    return errors[0]


Refused = Callable[..., str]


def cut(path: Path, keep: float = 0.5) -> None:
    """Cut off the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def replace_text(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


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
        (("cluster", "pictures", "--clusters", 3, "--time", "soon"), "--time is 'soon'"),
        (("cluster", "pictures", "--clusters", 3, "--copy", "--link"), "choose one"),
        (("cluster", "pictures", "--clusters", 3, "--out", "pictures/run"), "is inside pictures"),
        (("cluster", "pictures", "--clusters", 99), "99 clusters of 24 images"),
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
    Path("thesis.txt").write_text("three years of work")
    for argv in (("predict", run, pictures), ("report", run)):
        assert "use --force to replace it" in refused(*argv, "--out", "thesis.txt")


def test_an_out_folder_that_is_in_use_or_impossible_is_refused(
    refused: Refused, recipe: Path, run: Path
) -> None:
    assert "fedmcc resume" in refused("run", recipe, "--out", run)
    assert "not empty" in refused("run", recipe, "--out", run / "resume")
    assert "Choose another folder" in refused("run", recipe, "--out", run / "config.toml")
    assert "Choose another folder" in refused("run", recipe, "--out", run / "config.toml" / "below")


@pytest.mark.parametrize("command", ["resume", "evaluate", "predict", "report", "plot"])
def test_a_folder_that_is_not_a_run_directory_is_refused(
    refused: Refused, run: Path, pictures: Path, command: str
) -> None:
    more = {"predict": [pictures], "plot": ["--out", "figures"]}.get(command, [])
    assert "not a run directory" in refused(command, pictures, *more)
    assert "not a run directory" in refused(command, "nowhere", *more)
    (run / "environment.json").write_text(json.dumps({"format": 2}))
    assert "update fedmcc" in refused(command, run, *more)
    cut(run / "environment.json")
    assert "damaged" in refused(command, run, *more)


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_checkpoint_that_does_not_fit_is_refused(
    refused: Refused, run: Path, pictures: Path, command: str
) -> None:
    more = [pictures] if command == "predict" else []
    replace_text(run / "config.toml", "width = 4", "width = 5")
    assert "another architecture" in refused(command, run, *more)
    replace_text(run / "config.toml", "width = 5", "width = 4")
    cut(run / "checkpoints" / "final.safetensors")
    assert "damaged" in refused(command, run, *more)
    (run / "checkpoints" / "final.safetensors").unlink()
    assert "let the run finish" in refused(command, run, *more)


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


def test_a_run_that_cannot_be_evaluated_is_named(refused: Refused, run: Path, pictures: Path) -> None:
    argv = ("evaluate", run, "--protocol", "knn")
    (run / "evaluation.json").write_text("{")
    assert "evaluation.json is damaged" in refused(*argv)
    (run / "evaluation.json").unlink()
    replace_text(run / "config.toml", 'name = "digits"', f'name = "folder"\nroot = "{pictures}"')
    assert "another architecture" in refused(*argv)  # the pictures have three channels
    pictures.rename(pictures.parent / "elsewhere")
    assert f"images of {run} cannot be loaded: There is no folder {pictures}" in refused(*argv)
    (run / "checkpoints" / "final.safetensors").unlink()
    assert "let the run finish" in refused(*argv)
    (run / "config.toml").write_text("seed = ")
    assert "not valid TOML" in refused(*argv)


@pytest.mark.parametrize("file", ["model", "client-0", "extras", "progress"])
def test_a_damaged_file_that_prevents_resuming_is_named(
    refused: Refused, unfinished: Path, file: str
) -> None:
    (path,) = (unfinished / "resume").glob(f"{file}*")
    cut(path)
    assert path.name in refused("resume", unfinished)
    path.unlink()
    if file != "progress":
        assert path.name in refused("resume", unfinished)


@pytest.mark.parametrize(
    ("old", "new"),
    [("width = 4", "width = 5"), ("clusters = 10", "clusters = 9"), ('name = "mcc"', 'name = "cc"')],
)
def test_a_run_whose_configuration_was_changed_is_not_resumed(
    refused: Refused, unfinished: Path, old: str, new: str
) -> None:
    text = (unfinished / "config.toml").read_text()
    only_mcc = ("momentum", "anchor =", "target =", "loss =", "predictor =") if "cc" in new else ()
    lines = [line for line in text.splitlines() if not line.startswith(only_mcc or "#")]
    (unfinished / "config.toml").write_text("\n".join(lines).replace(old, new))
    assert "another architecture" in refused("resume", unfinished)


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


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("run", "nowhere.toml"), "no recipe at nowhere.toml"),
        (("evaluate", "{run}"), "damaged"),
    ],
)
def test_a_command_in_its_own_process_reports_mistakes_in_the_same_way(
    started: Start, recipe: Path, run: Path, argv: tuple[str, ...], hint: str
) -> None:
    cut(run / "checkpoints" / "final.safetensors")
    process = started(*(argument.format(recipe=recipe, run=run) for argument in argv))
    err = process.communicate(timeout=120)[1]
    assert hint in sentence(process.returncode, err)


def test_a_full_disk_is_one_sentence_and_exit_code_1(
    fedmcc: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = fedmcc("run", recipe, "--out", "new")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
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
