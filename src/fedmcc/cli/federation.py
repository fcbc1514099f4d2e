"""Commands of real federations: federation, server, site."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.program import app, command

if TYPE_CHECKING:
    from fedmcc.deployment.folders import Operator

federation = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Found a real federation, see it, end it."
)
server = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run the server of a federation.")
site = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Take part in a federation as a site.")
for name, group in (("federation", federation), ("server", server), ("site", site)):
    app.add_typer(group, name=name)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the federation.")]
Images = Annotated[Path, typer.Option("--data", metavar="IMAGES", help="A folder of images.")]
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
    from fedmcc import screen
    from fedmcc.deployment import founding
    from fedmcc.deployment.folders import Terms

    names = tuple(name.strip() for name in sites.split(","))
    terms = Terms(host, port, port + 1 if control_port is None else control_port, names)
    operator = founding.found(folder, terms, days)
    for name in names:
        screen.say(f"For {name}: {operator.site(name).path}, over a channel you trust, for it holds a key.")
    _say_expiries(operator)
    screen.say(f"{operator.authority_key} certifies servers: keep a copy offline, give it to nobody.")


@partial(command, group=federation)
def add(folder: Folder, site: Annotated[str, typer.Option(help="The name of the new site.")]) -> None:
    """Add a site; a running server meets it when it is started again."""
    from fedmcc import screen
    from fedmcc.deployment import founding
    from fedmcc.deployment.folders import Operator

    operator = Operator(folder.resolve())
    founding.add_site(operator, site)
    screen.say(f"For {site}: {operator.site(site).path}, over a channel you trust, for it holds a key.")


@partial(command, group=federation)
def renew(folder: Folder, days: Days = 365) -> None:
    """Renew the server's certificate; sites keep what they have."""
    from fedmcc.deployment import founding
    from fedmcc.deployment.folders import Operator

    operator = Operator(folder.resolve())
    founding.renew(operator, days)
    _say_expiries(operator)


def _say_expiries(operator: "Operator") -> None:
    from fedmcc import screen
    from fedmcc.deployment import founding

    for what, end in founding.expiries(operator).items():
        screen.say(f"{what.capitalize()} expires on {end:%Y-%m-%d}.")


@partial(command, group=site)
def check(
    data: Images,
    recipe: Annotated[Path | None, typer.Option(help="The recipe of the federation [the default].")] = None,
) -> None:
    """Look at a site's images before it joins; nothing leaves the site."""
    from rich import filesize

    from fedmcc import screen
    from fedmcc.deployment.survey import configured, survey

    found = survey(configured(data, recipe))
    screen.say(f"{len(found.images):,} images found, {len(found.images.skipped):,} files unreadable.")
    if complaint := found.images.complaint():
        screen.warn(complaint)
    smallest, middle, largest = ("{} × {}".format(*size) for size in found.sizes[:3])
    screen.say(f"{smallest} to {largest} pixels, median {middle}; {filesize.decimal(found.sizes.bytes)}.")
    for load in found.loads:
        sent = filesize.decimal(load.sent)
        screen.say(f"A round of {load.stage}: about {load.seconds:,.0f} s here, {sent} each way.")
    screen.say(f"Memory while training: about {filesize.decimal(found.memory)}.")
