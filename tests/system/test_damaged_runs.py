"""A damaged or changed run directory is named in one sentence, with exit code 2, and no file is changed."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]


def cut(path: Path) -> None:
    """Cut off the second half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def replace_text(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


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
    ("file", "content", "hint"),
    [
        ("resume/progress.json", "{}", "progress.json is damaged"),
        ("resume/progress.json", '{"rows": "a"}', "is damaged"),
        ("metrics.jsonl", "[]\n", "Line 1 of"),
        ("metrics.jsonl", "", "has 0 of"),
        ("partition.npz", "PK", "partition.npz is damaged"),
    ],
)
def test_a_file_with_another_content_than_resuming_needs_is_named(
    refused: Refused, unfinished: Path, file: str, content: str, hint: str
) -> None:
    (unfinished / file).write_text(content)
    assert hint in refused("resume", unfinished)


def test_a_partition_with_a_changed_byte_is_damaged(refused: Refused, unfinished: Path) -> None:
    content = bytearray((unfinished / "partition.npz").read_bytes())
    content[60] ^= 0x55  # in the first compressed array
    (unfinished / "partition.npz").write_bytes(bytes(content))
    assert "partition.npz is damaged" in refused("resume", unfinished)


def test_a_run_is_not_resumed_on_other_images(refused: Refused, unfinished: Path) -> None:
    replace_text(unfinished / "config.toml", "limit = 100", "limit = 99")
    assert "have changed since it began (100 images, now 99)" in refused("resume", unfinished)


def test_the_table_of_a_run_and_tables_of_other_programs_are_not_replaced(
    refused: Refused, run: Path, tmp_path: Path
) -> None:
    argv = ("predict", run, tmp_path, "--out")
    assert "is the table of the run itself" in refused(*argv, run / "assignments.csv")
    (tmp_path / "mine.csv").write_text("image,cluster,my_notes\na,1,x\n")
    assert "use --force to replace it" in refused(*argv, tmp_path / "mine.csv")


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


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("run", "nowhere.toml"), "no recipe at nowhere.toml"),
        (("evaluate", "{run}"), "damaged"),
    ],
)
def test_a_command_in_its_own_process_reports_mistakes_in_the_same_way(
    started: Start,
    sentence: Callable[[int, str], str],
    recipe: Path,
    run: Path,
    argv: tuple[str, ...],
    hint: str,
) -> None:
    cut(run / "checkpoints" / "final.safetensors")
    process = started(*(argument.format(recipe=recipe, run=run) for argument in argv))
    err = process.communicate(timeout=120)[1]
    assert hint in sentence(process.returncode, err)
