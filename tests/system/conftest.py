"""A tiny recipe, and the commands of the program: inside this process, or as processes of their own."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from typer.testing import CliRunner

from fedmcc import config
from fedmcc.cli import app
from fedmcc.data import load_dataset
from fedmcc.runs import experiment

PROGRAM = (str(Path(sys.executable).parent / "fedmcc"),)
RECIPE = """
seed = 3
threads = 1
device = "cpu"

[data]
name = "digits"
limit = 300

[views]
size = 8

[encoder]
width = 4

[method]
name = "mcc"
rounds = 8
hidden = 16

[training]
batch_size = 64
"""

Command = Callable[..., Result]
# Chromium must not connect to its vendor, and containers have no sandbox for it.
CHROMIUM = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
CHROMIUM += ("--disable-background-networking", "--disable-component-update")
FEDERATED = ["partition.name=dirichlet", "partition.clients=3", "method.rounds=2", "data.limit=120"]


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM, timeout=240_000)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def tiny() -> str:
    return RECIPE


@pytest.fixture
def recipe(tmp_path: Path, tiny: str) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(tiny)
    return path


@pytest.fixture
def fedmcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command inside this process, in its own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *argv: CliRunner().invoke(app, _without_report(argv))


def _without_report(argv: Iterable[object]) -> list[str]:
    """The command line with --no-report: a report takes seconds, and test_report tests it."""
    command, *others = map(str, argv)
    return [command, *(["--no-report"] if command in ("run", "resume", "demo") else []), *others]


@pytest.fixture
def sentence() -> Callable[[int, str], str]:
    """Returns the one sentence with the error of a command that failed because of its input."""

    def find(code: int, err: str) -> str:
        assert code == 2, err
        assert "Traceback" not in err
        errors = [line for line in err.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, err
        assert errors[0].endswith((".", "?"))
        return errors[0].removeprefix("Error: ")

    return find


@pytest.fixture
def refused(fedmcc: Command, sentence: Callable[[int, str], str], tmp_path: Path) -> Callable[..., str]:
    """Runs a command that must fail because of its input, and change no file; returns the error."""

    def run(*argv: object) -> str:
        before = _contents(tmp_path)
        result = fedmcc(*argv)
        assert _contents(tmp_path) == before
        return sentence(result.exit_code, result.stderr)

    return run


def _contents(folder: Path) -> dict[str, bytes]:
    """Content of every file in a folder, except the cache."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: content for name, content in named.items() if not name.startswith("cache/")}


def _restore_sigint() -> None:
    """Make SIGINT interrupt the process, even if the tests run in the background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the program as a process, which is killed at the end of the test."""
    processes = []

    def start(*arguments: object, program: tuple[str, ...] = PROGRAM) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = os.environ | {"COLUMNS": "80"}
        argv = (*program, *_without_report(arguments))
        process = subprocess.Popen(argv, text=True, env=environment, preexec_fn=_restore_sigint, **pipes)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds, shared by all tests: copy it, do not change it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(RECIPE)
    loaded = config.load(folder / "tiny.toml", ["method.rounds=2", "data.limit=100"])
    return experiment.run(loaded, folder / "run").path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Path:
    """Two runs of different seeds; the second has a refused and a dropped client, ε and an evaluation."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.toml").write_text(tiny)
    for seed in (1, 2):
        loaded = config.load(folder / "tiny.toml", [*FEDERATED, f"seed={seed}"])
        run = experiment.run(loaded, folder / f"seed-{seed}").path
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[1] |= {"refused": [{"client": 2, "reason": "Its loss is <b>nan</b>."}], "dropped": [1]}
    rows = [row | {"epsilon": 0.5 * row["round"]} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    score = {"mean": 0.5, "std": 0.125, "values": [0.375, 0.625], "split": "all", "images": 120}
    (run / "evaluation.json").write_text(json.dumps({"linear": {"acc": score}}))
    judge(run / "assignments.csv")
    (run / "duplicates.csv").write_text("image,duplicate_of\n4,3\n5,3\n")
    return folder


def judge(table: Path) -> None:
    """Add a second choice and a distance to each image; the seventh is an outlier."""
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        kind = "outlier" if line["image"] == "7" else "typical"
        line |= {"second": str((int(line["cluster"]) + 1) % 10), "distance": "0.5", "kind": kind}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which a test may change."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def unfinished(run: Path) -> Path:
    """A run that was killed after its last round and before its final network was written."""
    for name in ("scores.json", "assignments.csv", "checkpoints/final.safetensors"):
        (run / name).unlink()
    return run


@pytest.fixture(scope="session")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders a, b and c with a hundred image files of handwritten digits each."""
    folder = tmp_path_factory.mktemp("owners")
    for name in "abc":
        (folder / name).mkdir()
    for number, pixels in enumerate(load_dataset("digits", limit=300).images):
        Image.fromarray(pixels[0]).save(folder / "abc"[number % 3] / f"patient-{number}.png")
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve dark and twelve bright colour images, without labels."""
    draw = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for number in range(24):
        pixels = draw.integers(0, 100, (20, 24, 3)) + 150 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / f"{number:02}.png")
    return tmp_path / "pictures"


@pytest.fixture
def truncated(pictures: Path, tmp_path: Path) -> Path:
    """The first half of an image file."""
    path = tmp_path / "half" / "half.png"
    path.parent.mkdir()
    whole = (pictures / "00.png").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.fixture
def unlabelled(fedmcc: Command, pictures: Path, tmp_path: Path) -> Path:
    """A run on a folder of images without labels."""
    small = ["clusters=2", "data.size=16", "encoder.width=2", "threads=1", "training.batch_size=8"]
    options = [option for setting in [*small, "method.rounds=2"] for option in ("--set", setting)]
    assert fedmcc("run", pictures, *options, "--out", tmp_path / "run").exit_code == 0
    return tmp_path / "run"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is slow: it starts processes, servers or a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
