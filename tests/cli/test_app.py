"""What happens to errors of commands."""

import errno

import pytest
import typer
from typer.testing import CliRunner

from fedmcc.cli.app import command


def _run(error):
    group = typer.Typer()

    def fail():
        raise error

    command(fail, group)
    return CliRunner().invoke(group, [])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_is_one_sentence_with_the_remedy(error):
    result = _run(error)
    assert result.exit_code == 1
    assert "not enough memory: lower views.size" in " ".join(result.output.split())


def test_other_errors_of_the_program_keep_their_traceback():
    assert isinstance(_run(RuntimeError("a bug")).exception, RuntimeError)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on the disk: free some"),
        (
            PermissionError(errno.EACCES, "Permission denied", "runs/a/.clusters.json.b9m9yb__"),
            "Permission denied (runs/a/clusters.json)",
        ),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/"), "Is a directory (/)"),
        (OSError(errno.EIO, "Input/output error", 7), "Input/output error"),
        (
            IsADirectoryError(errno.EISDIR, "Is a directory", "runs/a/.hidden"),
            "Is a directory (runs/a/.hidden)",
        ),
    ],
)
def test_an_error_of_the_operating_system_names_the_file_that_was_to_be_written(error, sentence):
    result = _run(error)
    assert result.exit_code == 1
    assert sentence in " ".join(result.output.split())
