"""The program: what all commands share. Each imports what it needs when it runs: `--help` is instant."""

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take two thirds of the time that it takes
)

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change an option, such as method.momentum=0.996.")
]
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML file, or a folder of images.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]


def command(function: Callable[..., None], group: typer.Typer = app) -> Callable[..., None]:
    """A command whose failures are one sentence and an exit code: 2 for the user's input, 1 for ours."""

    @functools.wraps(function)
    def answered(*args: Any, **options: Any) -> None:
        from fedmcc.errors import InputError

        try:
            function(*args, **options)
        except InputError as error:
            stop(str(error), 2)
        except ArithmeticError as error:  # DivergedError
            stop(str(error), 1)
        except BrokenPipeError:
            raise  # `fedmcc predict ... | head`: click ends quietly
        except OSError as error:
            stop(f"The system refused: {error}.", 1)
        except KeyboardInterrupt:
            stop("Interrupted.", 130)

    group.command()(answered)
    return answered


def main() -> None:
    """The program."""
    # Threads that wait for one another spin briefly: docs/decisions/0006-waiting-threads.md has the figures.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("fedmcc").setLevel(logging.INFO)
    app()


def _show_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fedmcc {version('fedmcc')}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Cluster images that cannot leave their owners."""


def stop(sentence: str, code: int) -> NoReturn:
    """End with a sentence on the screen and this exit code."""
    from fedmcc.terminal import output

    output.fail(sentence)
    raise typer.Exit(code)
