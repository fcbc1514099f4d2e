"""`fedmcc partition`, and what a run of several clients prints and writes about its partition."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from sklearn.datasets import load_digits

from fedmcc.runs import directory

Command = Callable[..., Result]
BY_CLASS = ("--set", "partition.name=by_class", "--set", "partition.clients=5")


def cells(table: str) -> list[list[str]]:
    """The rows of a printed table."""
    lines = [line.replace("┃", "│") for line in table.splitlines() if line.startswith(("│", "┃"))]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_the_table_counts_the_images_of_each_client_and_class(fedmcc: Command, recipe: Path) -> None:
    result = fedmcc("partition", recipe, *BY_CLASS, "--out", "table.png")
    header, *rows, total = cells(result.stdout)
    assert result.exit_code == 0
    assert header == ["client", *map(str, range(10)), "all"]
    sizes = np.bincount(load_digits().target[:300])
    for client, row in enumerate(rows):
        own = [str(sizes[label]) if label // 2 == client else "·" for label in range(10)]
        assert row == [str(client), *own, str(sizes[2 * client : 2 * client + 2].sum())]
    assert total == ["all", *map(str, sizes), "300"]
    with Image.open("table.png") as picture:
        assert picture.width > picture.height > 200


@pytest.mark.parametrize("clients", [3, 15, 150])
def test_many_clients_still_fit_the_terminal(fedmcc: Command, recipe: Path, clients: int) -> None:
    result = fedmcc("partition", recipe, "--set", f"partition.clients={clients}")
    rows = cells(result.stdout)
    assert (rows[0][0], len(rows)) == ("client", clients + 2)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_wide_table_has_classes_as_rows_and_owners_as_columns(fedmcc: Command, pictures: Path) -> None:
    for number, path in enumerate(sorted(pictures.iterdir())):
        folder = pictures / ("Bonn", "Ulm")[number % 2] / f"a class of a long name, number {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    argv = ("--set", "partition.name=by_group", "--set", "data.groups=true", "--set", "data.size=16")
    rows = cells(fedmcc("partition", pictures, *argv).stdout)
    assert rows[0] == ["class", "Bonn", "Ulm", "all"]
    assert [row[1:] for row in rows[1:]] == [["4", "4", "8"]] * 3 + [["12", "12", "24"]]


def test_a_run_shows_the_table_and_keeps_the_partition(fedmcc: Command, recipe: Path) -> None:
    result = fedmcc("run", recipe, *BY_CLASS, "--set", "method.rounds=1", "--out", "run")
    assert result.exit_code == 0, result.output
    assert "5 clients, 300 images" in result.stderr
    with np.load(directory.load_run(Path("run")).path / "partition.npz", allow_pickle=False) as saved:
        rows = [saved[f"rows_{client}"] for client in range(5)]
        table = saved["holdings"]
    labels = load_digits().target[:300]
    assert sorted(np.concatenate(rows)) == list(range(300))
    assert [np.bincount(labels[own], minlength=10).tolist() for own in rows] == table.tolist()


def test_resuming_writes_the_partition_that_a_crash_prevented(fedmcc: Command, unfinished: Path) -> None:
    before = (unfinished / "partition.npz").read_bytes()
    (unfinished / "partition.npz").unlink()
    assert fedmcc("resume", unfinished).exit_code == 0
    assert (unfinished / "partition.npz").read_bytes() == before


def test_owners_of_a_folder_become_clients(fedmcc: Command, pictures: Path) -> None:
    for number, path in enumerate(sorted(pictures.iterdir())):
        (pictures / f"owner{number % 3}").mkdir(exist_ok=True)
        path.rename(pictures / f"owner{number % 3}" / path.name)
    settings = [
        "clusters=2",
        "data.size=16",
        "data.groups=true",
        "partition.name=by_group",
        "encoder.width=2",
    ]
    settings += ["method.rounds=1", "training.batch_size=8", "threads=1", "clustering.smallest=1"]
    result = fedmcc(
        "run", pictures, *(part for setting in settings for part in ("--set", setting)), "--out", "run"
    )
    assert result.exit_code == 0, result.output
    assert "clients = 3" in Path("run/config.toml").read_text()
    assert "keep_optimizer = false" in Path("run/config.toml").read_text()
    assert directory.Run(Path("run")).rows()[0]["participants"] == [0, 1, 2]


def test_a_run_of_one_client_prints_no_table(fedmcc: Command, recipe: Path) -> None:
    argv = ("--set", "method.rounds=1", "--set", "data.limit=64", "--out", "run")
    assert "clients" not in fedmcc("run", recipe, *argv).stderr
    assert Path("run/partition.npz").exists()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--set", "partition.name=by_group"], "Error: The images have no groups: set data.groups"),
        (["--set", "partition.clients=400"], "Error: A client would have 0 images"),
        (["--out", "table.pdf"], "Error: table.pdf is not a PNG file"),
    ],
)
def test_mistakes_are_refused(fedmcc: Command, recipe: Path, argv: list[str], sentence: str) -> None:
    result = fedmcc("partition", recipe, *argv)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
