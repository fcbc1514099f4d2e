"""The program `fedmcc` and what its commands share.

Commands import what they need when they run, so that `--help` starts at once.
"""

import errno
import functools
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core
import typer.main

typer.core.HAS_RICH = False  # typer escapes brackets for rich even without it: help would show `\[required]`

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help with boxes takes three times as long
)

OUT_OF_MEMORY = (
    "There is not enough memory: lower views.size, the sizes of the network or training.batch_size, or set "
    "training.chunk to a number of images such as 64."
)

TEMPORARY_NAME = re.compile(r"^\.(.+)\.\w{8}$")  # of a file that is being written

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change an option, such as method.momentum=0.996.")
]
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file, or a folder of images.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file even if fedmcc did not write it.")]


def _set_quiet(quiet: bool) -> bool:
    """Keep `output.say` and progress displays from printing."""
    if quiet:
        logging.getLogger("fedmcc").setLevel(logging.WARNING)
    return quiet


Quiet = Annotated[
    bool, typer.Option("--quiet", callback=_set_quiet, help="Print results, warnings and errors only.")
]


def command(function: Callable[..., None], group: typer.Typer = app) -> Callable[..., None]:
    """Register a command whose errors are one printed sentence, with exit code 2 for wrong input, else 1."""

    @functools.wraps(function)
    def with_errors(*args: Any, **options: Any) -> None:
        from fedmcc.errors import InputError

        try:
            function(*args, **options)
        except InputError as error:
            stop(str(error), 2)
        except ArithmeticError as error:  # DivergedError
            stop(str(error), 1)
        except BrokenPipeError:
            raise  # `fedmcc predict ... | head`: click exits without a message
        except OSError as error:
            stop(_os_error_sentence(error), 1)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            stop(OUT_OF_MEMORY, 1)
        except KeyboardInterrupt:
            stop("Interrupted.", 130)

    group.command()(with_errors)
    return with_errors


def _os_error_sentence(error: OSError) -> str:
    """What the operating system refused; a temporary file is called by the name of the file it becomes."""
    if error.errno is None:  # of Flower's programs
        return f"{error}."
    if error.errno == errno.ENOSPC:
        return "There is no space left on the disk: free some, then `fedmcc resume` continues a run."
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return f"Operating system error: {error}."
    folder, name = os.path.split(os.fsdecode(error.filename))
    path = os.path.join(folder, TEMPORARY_NAME.sub(r"\1", name))  # noqa: PTH118 (a Path has no empty name)
    return f"Operating system error: {error.strerror} ({path})."


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory is missing: PyTorch raises RuntimeError, with a text that depends on the device."""
    text = str(error).lower()
    missing = ("allocate memory", "out of memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or any(each in text for each in missing)


def main() -> None:
    """Run the program."""
    # Waiting threads spin only briefly; for measurements see docs/decisions/0006-waiting-threads.md.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("fedmcc").setLevel(logging.INFO)
    program = typer.main.get_command(app)
    for option in program.params:
        if isinstance(option, typer.core.TyperOption):
            option.hidden = option.name == "show_completion"  # so that the help fits a screen
    program()


def _show_version(requested: bool) -> bool:
    if requested:
        from importlib.metadata import version

        typer.echo(f"fedmcc {version('fedmcc')}")
        raise typer.Exit
    return requested


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Cluster images that cannot leave their owners."""
    logger = logging.getLogger("fedmcc")
    if logger.level > logging.INFO:  # a quiet command ran before in this process
        logger.setLevel(logging.INFO)


def stop(message: str, code: int) -> NoReturn:
    """Print an error message and exit with this code."""
    from fedmcc.terminal import output

    output.fail(message)
    raise typer.Exit(code)
