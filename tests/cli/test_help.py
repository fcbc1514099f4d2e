"""The help of every command."""

from collections.abc import Iterator
from importlib.metadata import version

import pytest
import typer
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


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"fedmcc {version('fedmcc')}\n"
