"""Commands of a federation's operator: federation init, add, renew, status, stop."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import app, command

if TYPE_CHECKING:
    from fedmcc.deployment.setup.layout import OperatorFolder

federation = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Found a real federation, see it, end it."
)
app.add_typer(federation, name="federation")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the federation.")]
Days = Annotated[int, typer.Option(help="How long the server's certificate is valid.")]


@partial(command, group=federation)
def init(
    folder: Folder,
    sites: Annotated[str, typer.Option(help="Their names, such as north,south.")],
    host: Annotated[str, typer.Option(help="Where sites reach the server: a name or an IP address.")],
    port: Annotated[int, typer.Option(help="The port that sites reach.")] = 8000,
    control_port: Annotated[
        int | None, typer.Option(help="Flower's port on this machine alone [PORT + 1].")
    ] = None,
    days: Days = 365,
) -> None:
    """Make certificates, keys, and a folder to hand to each site."""
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import FederationSpec
    from fedmcc.terminal import output

    names = tuple(name.strip() for name in sites.split(","))
    spec = FederationSpec(host, port, port + 1 if control_port is None else control_port, names)
    operator = create.create_federation(folder, spec, days)
    for name in names:
        output.say(f"For {name}: {operator.site(name).path}, over a channel you trust, for it holds a key.")
    _say_expiries(operator)
    output.say(f"{operator.authority_key} certifies servers: keep a copy offline, give it to nobody.")


@partial(command, group=federation)
def add(folder: Folder, site: Annotated[str, typer.Option(help="The name of the new site.")]) -> None:
    """Add a site; a running server meets it when it is started again."""
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    create.add_site(operator, site)
    output.say(f"For {site}: {operator.site(site).path}, over a channel you trust, for it holds a key.")


@partial(command, group=federation)
def renew(folder: Folder, days: Days = 365) -> None:
    """Renew the server's certificate; sites keep what they have."""
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder

    operator = OperatorFolder(folder.resolve())
    create.renew_certificate(operator, days)
    _say_expiries(operator)


@partial(command, group=federation)
def status(folder: Folder) -> None:
    """Show who is there, how far the run is and what was sent."""
    from rich import filesize
    from rich.table import Table

    from fedmcc.deployment.server.status import status
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    found = status(OperatorFolder(folder.resolve()))
    table = Table("site", "state", "last seen (UTC)", "rounds", "received", "sent")
    for site in found.sites:
        sizes = (filesize.decimal(site.down), filesize.decimal(site.up))
        table.add_row(site.name, site.state, site.seen, str(site.rounds), *sizes)
    output.out.print(table)
    state = "running" if found.running else "not running"
    output.out.print(f"The server is {state}. {found.sentence}", highlight=False, soft_wrap=True)


@partial(command, group=federation)
def stop(folder: Folder) -> None:
    """Stop the server and all that it started."""
    from fedmcc.deployment.server.launch import stop
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    stopped = stop(OperatorFolder(folder.resolve()))
    output.say("Stopped; `fedmcc server start` goes on." if stopped else "Nothing was running.")


def _say_expiries(operator: "OperatorFolder") -> None:
    from fedmcc.deployment.setup import create
    from fedmcc.terminal import output

    for what, end in create.expiry_dates(operator).items():
        output.say(f"{what.capitalize()} expires on {end:%Y-%m-%d}.")
