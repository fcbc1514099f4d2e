"""Commands for the operator: federation init, add, revoke, rotate, renew, status, audit, stop."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import app, command

if TYPE_CHECKING:
    from fedmcc.deployment.server.status import Status
    from fedmcc.deployment.setup.layout import OperatorFolder

WATCH_SECONDS = 5.0

federation = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, inspect and stop a federation."
)
app.add_typer(federation, name="federation")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the federation.")]
Site = Annotated[str, typer.Option(help="Name of the site.")]
Days = Annotated[int, typer.Option(help="Days until the server's certificate expires.")]


@partial(command, group=federation)
def init(
    folder: Folder,
    sites: Annotated[str, typer.Option(help="Names of the sites, such as north,south.")],
    host: Annotated[str, typer.Option(help="Host name or IP address of the server.")],
    port: Annotated[int, typer.Option(help="Port to which sites connect.")] = 8000,
    control_port: Annotated[int | None, typer.Option(help="Port of Flower on 127.0.0.1 [PORT + 1].")] = None,
    days: Days = 365,
) -> None:
    """Create certificates, keys, and a folder for each site.

    Example: fedmcc federation init DIR --sites north,south --host fed.example.org
    """
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import FederationSpec
    from fedmcc.terminal import output

    names = tuple(name.strip() for name in sites.split(","))
    spec = FederationSpec(host, port, port + 1 if control_port is None else control_port, names)
    operator = create.create_federation(folder, spec, days)
    for name in names:
        _show_site_folder(operator, name)
    _show_expiry_dates(operator)
    output.say(f"{operator.authority_key} signs server certificates: keep it secret, with an offline backup.")


@partial(command, group=federation)
def add(folder: Folder, site: Annotated[str, typer.Option(help="Name of the new site.")]) -> None:
    """Add a site; during a run, it takes part from the next round on.

    Example: fedmcc federation add DIR --site west
    """
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder

    operator = OperatorFolder(folder.resolve())
    create.add_site(operator, site)
    _show_site_folder(operator, site)


@partial(command, group=federation)
def revoke(folder: Folder, site: Site) -> None:
    """Remove a site; its key is refused at once, also during a run.

    Example: fedmcc federation revoke DIR --site west
    """
    from fedmcc.deployment.server.launch import reload_proxy
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    create.revoke_site(operator, site)
    running = reload_proxy(operator)
    output.say(f"{site} is revoked{'; the running server refuses it from now on' if running else ''}.")


@partial(command, group=federation)
def rotate(folder: Folder, site: Site) -> None:
    """Replace a site's key under its name; the old one is refused.

    Example: fedmcc federation rotate DIR --site west
    """
    from fedmcc.deployment.server.launch import reload_proxy
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    create.rotate_key(operator, site)
    key = operator.site(site).key
    output.say(f"For {site}: send {key} over a secure channel; it replaces site.key in the site's folder.")
    if reload_proxy(operator):
        output.say("The running server refuses the old key, and accepts the new one.")


@partial(command, group=federation)
def renew(folder: Folder, days: Days = 365) -> None:
    """Renew the server's certificate; site folders stay valid.

    Example: fedmcc federation renew DIR
    """
    from fedmcc.deployment.server.launch import reload_proxy
    from fedmcc.deployment.setup import create
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    create.renew_certificate(operator, days)
    _show_expiry_dates(operator)
    if reload_proxy(operator):
        output.say("The running server uses the new certificate.")


@partial(command, group=federation)
def status(
    folder: Folder,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
    watch: Annotated[bool, typer.Option(help="Show it again every five seconds, until Ctrl-C.")] = False,
) -> None:
    """Show connected sites, the progress of the run, and bytes sent.

    Example: fedmcc federation status DIR
    """
    from fedmcc.deployment.server.status import read_status
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    operator = OperatorFolder(folder.resolve())
    while True:
        current = read_status(operator)
        if watch and output.out.is_terminal:
            output.out.clear()
        if json:
            print(current.to_json(), flush=True)
        else:
            _show_status(current)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def _show_status(current: "Status") -> None:
    from rich import filesize
    from rich.table import Table

    from fedmcc.terminal import output

    table = Table("site", "state", "last seen (UTC)", "rounds", "received", "sent")
    for site in current.sites:
        sizes = (filesize.decimal(site.down), filesize.decimal(site.up))
        table.add_row(site.name, site.state, site.seen, str(site.rounds), *sizes)
    output.out.print(table)
    state = "running" if current.running else "not running"
    output.out.print(f"The server is {state}. {current.summary}", highlight=False, soft_wrap=True)


@partial(command, group=federation)
def audit(
    folder: Folder,
    books: Annotated[
        list[Path] | None,
        typer.Argument(metavar="BOOK", help="Audit books of sites [DIR/sites/NAME/audit.jsonl]."),
    ] = None,
) -> None:
    """Verify the audit books of server and sites, and compare them.

    Example: fedmcc federation audit DIR
    """
    from fedmcc.deployment.server.audit import audit
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.errors import InputError
    from fedmcc.terminal import output

    report = audit(OperatorFolder(folder.resolve()), tuple(books or ()))
    for owner, lines in report.lines.items():
        output.say(f"{owner}: {lines:,} lines")
    for fault in report.faults:
        output.warn(fault)
    if report.faults:
        raise InputError(f"The audit failed: {len(report.faults)} faults.")
    output.say("All lines are genuine, and the books agree.")


@partial(command, group=federation)
def stop(folder: Folder) -> None:
    """Stop the server and all processes that it started.

    Example: fedmcc federation stop DIR
    """
    from fedmcc.deployment.server.launch import stop
    from fedmcc.deployment.setup.layout import OperatorFolder
    from fedmcc.terminal import output

    stopped = stop(OperatorFolder(folder.resolve()))
    output.say("Stopped; resume with `fedmcc server start`." if stopped else "The server was not running.")


def _show_site_folder(operator: "OperatorFolder", name: str) -> None:
    from fedmcc.terminal import output

    path = operator.site(name).path
    output.say(f"For {name}: send {path} over a secure channel, since it contains a private key.")


def _show_expiry_dates(operator: "OperatorFolder") -> None:
    from fedmcc.deployment.setup import create
    from fedmcc.terminal import output

    for what, end in create.expiry_dates(operator).items():
        output.say(f"{what.capitalize()} expires on {end:%Y-%m-%d}.")
