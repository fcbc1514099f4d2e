"""Commands for a site of a federation: site check, start."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.app import app, command

site = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Take part in a federation as a site.")
app.add_typer(site, name="site")

Images = Annotated[Path, typer.Option("--data", metavar="IMAGES", help="A folder of images.")]

Encoder = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The pretrained encoder of the recipe: its file or folder here."),
]


@partial(command, group=site)
def check(
    data: Images,
    recipe: Annotated[
        Path | None, typer.Option(help="The recipe of the federation [default options].")
    ] = None,
    encoder: Encoder = None,
) -> None:
    """Check the images of a site before it joins; nothing is sent.

    Example: fedmcc site check --data IMAGES --recipe recipe.toml
    """
    from rich import filesize

    from fedmcc import config
    from fedmcc.deployment.recipes import recipe_hash
    from fedmcc.deployment.site.check import check_site, resolve_recipe
    from fedmcc.terminal import output

    if recipe is not None:
        output.say(f"The recipe's hash is {recipe_hash(config.dump(config.load(recipe)))}.")
    report = check_site(resolve_recipe(data, recipe, encoder))
    output.say(f"{len(report.images):,} images found, {len(report.images.skipped):,} files unreadable.")
    if skipped := report.images.skipped_message():
        output.warn(skipped)
    smallest, middle, largest = ("{} × {}".format(*size) for size in report.sizes[:3])
    output.say(f"{smallest} to {largest} pixels, median {middle}; {filesize.decimal(report.sizes.bytes)}.")
    for cost in report.costs:
        sent = filesize.decimal(cost.sent)
        output.say(f"A round of {cost.stage}: about {cost.seconds:,.0f} s on this machine, {sent} each way.")
    output.say(f"Memory while training: about {filesize.decimal(report.memory)}.")


@partial(command, group=site)
def start(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that the site received.")],
    data: Images,
    encoder: Encoder = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Refuse recipes without: secure-aggregation."),
    ] = None,
) -> None:
    """Take part until stopped; wait for the server while it is down.

    Example: fedmcc site start DIR --data IMAGES
    """
    from fedmcc.deployment.flower import processes
    from fedmcc.deployment.setup.layout import SiteFolder
    from fedmcc.deployment.site.launch import run_site
    from fedmcc.terminal import output

    with processes.sigterm_as_interrupt():
        for sentence in run_site(SiteFolder(folder.resolve()), data, encoder, require or ()):
            output.say(sentence)
