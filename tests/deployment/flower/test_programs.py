"""Flower's command line, replaced by a script."""

from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from fedmcc.deployment.flower.programs import CommandLine, FlowerError


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces Flower's program by a script."""
    path = tmp_path / "flwr"
    monkeypatch.setattr("fedmcc.deployment.flower.programs.find_program", lambda name: str(path))

    def write(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)

    return write


@pytest.mark.parametrize(
    "script", ["exec sleep 30", "echo '[]'", "echo 3", "echo no >&2; exit 1", "echo '{}'"]
)
def test_whatever_flower_answers_the_error_names_the_command(
    script: str, flwr: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmcc.deployment.flower.programs.COMMAND_SECONDS", 1.0)
    flwr(script)
    with pytest.raises(FlowerError, match=r"`flwr supernode` (failed: |did not end within 1 seconds)"):
        CommandLine(tmp_path).nodes()


def test_nodes_are_those_that_flower_lists(flwr: Callable[[str], None], tmp_path: Path) -> None:
    flwr("""echo '{"success": true, "nodes": [{"node-id": "7"}]}'""")
    assert CommandLine(tmp_path).nodes() == [{"node-id": "7"}]


def test_all_keys_are_registered_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(argv: Sequence[str], **options: object) -> CompletedProcess[str]:
        calls.append(argv)
        return CompletedProcess(argv, 0, '{"success": true, "node-ids": [7, 18446744073709551615]}', "")

    monkeypatch.setattr("fedmcc.deployment.flower.programs.subprocess.run", run)
    keys = [tmp_path / "north.pub", tmp_path / "south.pub"]
    assert CommandLine(tmp_path).register(keys) == [7, 2**64 - 1]
    assert [argv[-2:] for argv in calls] == [tuple(map(str, keys))]
