"""The picture of images per client and class: discs in proportion, names and totals beside them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.data.partition import Holdings
from fedmcc.errors import InputError
from fedmcc.report.pictures import DISC_COLOUR, write_holdings, write_views


def discs(counts: list[list[int]], path: Path) -> np.ndarray:
    """The pixels that have the colour of a disc."""
    table = np.array(counts, dtype=np.int64)
    names = [tuple(map(str, range(length))) for length in table.shape]
    write_holdings(Holdings(*names, table), path)
    with Image.open(path) as picture:
        colour = np.array([int(DISC_COLOUR[start : start + 2], 16) for start in (1, 3, 5)])
        return (np.abs(np.asarray(picture.convert("RGB")).astype(int) - colour).sum(axis=2)) < 30


def test_the_area_of_a_disc_is_the_number_of_images(tmp_path: Path) -> None:
    counts = np.zeros((40, 40), int)  # cells too small for numbers, which would cover the discs
    counts[3, 4] = 400
    alone = discs(counts.tolist(), tmp_path / "one.png").sum()
    counts[20, 25] = 100
    both = discs(counts.tolist(), tmp_path / "two.png").sum()
    assert both / alone == pytest.approx(1.25, rel=0.05)


def test_clients_are_rows_and_classes_columns(tmp_path: Path) -> None:
    counts = np.zeros((30, 40), int)
    counts[3, 4] = counts[3, 14] = counts[13, 4] = 9
    rows, columns = np.nonzero(discs(counts.tolist(), tmp_path / "table.png"))
    cell = 30  # 1200 pixels for 40 columns
    assert rows.max() - rows.min() == pytest.approx(11 * cell, abs=5)
    assert columns.max() - columns.min() == pytest.approx(11 * cell, abs=5)


@pytest.mark.parametrize("shape", [(1, 1), (2, 100), (1000, 10)])
def test_any_number_of_clients_and_classes_fits(tmp_path: Path, shape: tuple[int, int]) -> None:
    mask = discs(np.ones(shape, int).tolist(), tmp_path / "new" / "table.png")
    assert shape[0] * 6 <= mask.shape[0] <= shape[0] * 56 + 100
    assert shape[1] * 6 <= mask.shape[1] <= shape[1] * 56 + 200


def test_long_names_are_shortened_and_empty_tables_drawn(tmp_path: Path) -> None:
    write_holdings(Holdings(("x" * 500,), ("y" * 500,), np.zeros((1, 1), np.int64)), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert max(picture.size) < 600
        assert np.asarray(picture).min() < 100


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.jpg is not a PNG file"):
        write_holdings(Holdings(("0",), ("0",), np.ones((1, 1), np.int64)), tmp_path / "a.jpg")


@pytest.mark.parametrize("command", ["views", "partition"])
def test_a_picture_that_the_command_did_not_write_is_replaced_only_by_force(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "recipe.toml").write_text('[data]\nname = "digits"\nlimit = 50\n')
    Image.new("RGB", (8, 8)).save(photo := tmp_path / "photo.png")
    before = photo.read_bytes()
    source = {"views": "digits", "partition": str(tmp_path / "recipe.toml")}[command]
    argv = [command, source, "--out", str(photo)]
    refused = CliRunner().invoke(app, argv)
    assert (refused.exit_code, photo.read_bytes()) == (2, before)
    assert "photo.png exists and was not written by this command: use --force" in refused.stderr
    for more in (["--force"], []):  # then the file is the command's own
        assert CliRunner().invoke(app, [*argv, *more]).exit_code == 0
    assert photo.read_bytes() != before


def test_the_picture_of_one_command_is_not_replaced_by_another(tmp_path: Path) -> None:
    held = Holdings(("0",), ("0",), np.ones((1, 1), np.int64))
    write_holdings(held, tmp_path / "a.png")
    with pytest.raises(InputError, match=r"a\.png exists and was not written by this command"):
        write_views("digits", "auto", [], tmp_path / "a.png")
