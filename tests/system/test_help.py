"""Help, version and start of the program: short sentences, and nothing slow is loaded."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click import Group
from click.testing import Result
from typer.main import get_command

from fedmcc.cli import app

Command = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

MODULE = (sys.executable, "-m", "fedmcc")


@pytest.mark.parametrize("program", [MODULE, (str(Path(sys.executable).parent / "fedmcc"),)])
def test_help_fits_a_terminal(started: Start, program: tuple[str, ...]) -> None:
    out = started("--help", program=program).communicate(timeout=60)[0]
    commands = ("run", "resume", "evaluate", "predict", "list", "views", "demo")
    assert all(re.search(rf"^  {command} .*\.$", out, re.MULTILINE) for command in commands)
    assert "..." not in out.split("Commands:")[1]  # typer shortens sentences that do not fit
    assert len(out.rstrip("\n").splitlines()) <= 32
    assert max(map(len, out.splitlines())) <= 80


def paths(group: Group) -> Iterator[tuple[str, ...]]:
    """The commands of a group, each as the arguments that call it."""
    for name, entry in group.commands.items():
        yield (name,)
        yield from ((name, *path) for path in (paths(entry) if isinstance(entry, Group) else ()))


@pytest.mark.parametrize("path", [*paths(get_command(app))], ids=" ".join)
def test_the_help_of_each_command_has_whole_sentences(fedmcc: Command, path: tuple[str, ...]) -> None:
    result = fedmcc(*path, "--help")
    assert result.exit_code == 0, result.output
    shown = result.stdout
    assert "\\" not in shown
    assert "..." not in re.sub(r"(\[ARGS\]|RUN|OTHER)\.\.\.", "", shown)
    assert len(shown.splitlines()) <= 24
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "argv", [("-m", "fedmcc", "--help"), ("-c", "import fedmcc"), ("-c", "import fedmcc.cli")]
)
def test_neither_help_nor_import_loads_slow_libraries(started: Start, argv: tuple[str, ...]) -> None:
    process = started("-X", "importtime", *argv, program=(sys.executable,))
    err = process.communicate(timeout=60)[1]
    loaded = {line.split("|")[-1].strip() for line in err.splitlines()}
    assert process.returncode == 0
    assert "fedmcc" in loaded
    assert not loaded & {"torch", "numpy", "sklearn", "pydantic", "PIL", "flwr", "rich"}


def test_a_wrong_setting_is_refused_before_torch_is_loaded(started: Start, recipe: Path) -> None:
    argv = ("-X", "importtime", "-m", "fedmcc", "run", recipe, "--set", "training.batchsize=8")
    process = started(*argv, program=(sys.executable,))
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "Did you mean 'batch_size'?" in err
    loaded = {line.split("|")[-1].strip() for line in err.splitlines()}
    assert not loaded & {"torch", "numpy"}


def test_the_version_is_the_packages(fedmcc: Command) -> None:
    from importlib.metadata import version

    result = fedmcc("--version")
    assert (result.exit_code, result.stdout) == (0, f"fedmcc {version('fedmcc')}\n")
