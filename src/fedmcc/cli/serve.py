"""The command that serves a run as a page and an API: serve."""

from typing import Annotated

import typer

from fedmcc.cli.app import RunFolder, command


@command
def serve(
    run: RunFolder,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")
    ] = 8080,  # a federation has 8000
) -> None:
    """Open a page to classify images and correct clusters.

    Example: fedmcc serve runs/PICTURES-001
    """
    from fedmcc.errors import InputError
    from fedmcc.runs import directory

    opened = directory.load_run(run)
    try:
        from fedmcc.serving.launch import serve
    except ModuleNotFoundError as error:
        raise InputError(
            f"The service needs the package {error.name}: install it with `pip install 'fedmcc[serve]'`."
        ) from None
    serve(opened, host, port, _announce)


def _announce(address: str, token: str, loopback: bool) -> None:
    """Print the address and the token, which is shown only here."""
    from fedmcc.terminal import output

    typer.echo(f"Open {address}#token={token}")
    use = "change clusters" if loopback else "do anything"
    output.say(f"The part after # is the token: without it nobody can {use}. Stop with Ctrl+C.")
    if not loopback:
        output.warn(
            "Other machines can connect, and nothing is encrypted: put a proxy with TLS in front, or tunnel."
        )
