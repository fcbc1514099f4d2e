"""The help of every command."""

import shlex
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from fedmcc.cli import app


def commands(group: typer.Typer, *path: str) -> Iterator[tuple[str, ...]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield (*path, command.name or command.callback.__name__)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        assert inner.name is not None
        yield from commands(inner.typer_instance, *path, inner.name)


@pytest.mark.parametrize("path", list(commands(app)), ids=" ".join)
def test_the_help_of_every_command_has_one_example_of_it(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=200).stdout
    assert shown.count("Example: fedmcc ") == 1
    assert f"Example: fedmcc {' '.join(path)}" in shown


@pytest.mark.parametrize("path", list(commands(app)), ids=" ".join)
def test_the_example_of_every_command_has_all_required_options(path: tuple[str, ...]) -> None:
    entry: Any = get_command(app)
    for name in path:
        entry = entry.commands[name]
    example = entry.help.split("Example: fedmcc ")[1].splitlines()[0]
    words = shlex.split(example)[len(path) :]
    entry.make_context(path[-1], words)  # parses without running; raises for missing or unknown options


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"fedmcc {version('fedmcc')}\n"
