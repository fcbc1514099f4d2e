import json
import time
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from fedmcc.cli import app
from fedmcc.config import Config, parse
from fedmcc.errors import InputError
from fedmcc.runs.profile import PARTS, profiling

pytestmark = pytest.mark.slow  # takes seconds

RECIPE = """
clusters = 2
threads = 1
device = "cpu"
[data]
name = "synthetic"
samples = 48
size = 8
channels = 1
[encoder]
width = 4
[method]
name = "fedmcc"
rounds = 2
[clustering]
name = "mcc"
rounds = 1
[partition]
clients = 2
[training]
batch_size = 12
"""


class Done(NamedTuple):
    """A run directory, and the seconds that the command took."""

    run: Path
    wall: float


def timed_run(folder: Path, name: str, *argv: str) -> Done:
    recipe, start = folder / "small.toml", time.perf_counter()
    recipe.write_text(RECIPE)
    result = CliRunner().invoke(app, ["run", str(recipe), "--out", str(folder / name), *argv])
    assert result.exit_code == 0, result.output
    return Done(folder / name, time.perf_counter() - start)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("profiled")
    timed_run(folder, "plain", "--no-report")  # so that imports are not timed
    return timed_run(folder, "profiled", "--profile", "--no-report")


def test_a_profile_accounts_for_the_whole_wall_clock(profiled: Done) -> None:
    run, wall = profiled
    profile = json.loads((run / "profile.json").read_text())
    assert sum(profile["parts"].values()) == pytest.approx(profile["seconds"])
    assert wall / 2 < profile["seconds"] <= wall  # the command also does work before and after the run
    assert set(profile["chapters"]) == {"before", "representation", "clustering", "after"}
    assert set(profile["parts"]) == set(PARTS)


def test_the_markdown_is_a_table_of_all_parts(profiled: Done) -> None:
    lines = (profiled.run / "profile.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert table[0][:3] == ["part", "seconds", "share"]
    assert [row[0] for row in table[2:]] == [*PARTS, "all"]
    shares = [float(row[2].removesuffix(" %")) for row in table[2:-1]]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_a_profiled_run_is_bit_identical_to_any_other(profiled: Done) -> None:
    plain = profiled.run.with_name("plain")
    model = Path("checkpoints/final.safetensors")
    assert (plain / model).read_bytes() == (profiled.run / model).read_bytes()
    assert not list(plain.glob("profile.*"))


def test_a_profile_does_not_replace_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report = Mock()
    monkeypatch.setattr("fedmcc.cli.run.write_report", write_report)
    done = timed_run(tmp_path, "both", "--profile", "--report")
    assert (done.run / "profile.md").exists()
    ((_, run),) = (call.args for call in write_report.call_args_list)
    assert run.path == done.run


def test_clients_in_other_processes_are_not_profiled() -> None:
    config: Config = parse({"engine": {"name": "pool"}})
    with pytest.raises(InputError, match=r"--set engine\.name=embedded"), profiling(config):
        pass
