"""What happens to errors of commands."""

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
