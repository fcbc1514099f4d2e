"""The command that downloads pretrained encoders: encoders fetch."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.app import app, command

encoders = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Download pretrained encoders.")
app.add_typer(encoders, name="encoders")


@partial(command, group=encoders)
def fetch(
    name: Annotated[str, typer.Argument(help="The model on the Hugging Face hub, as OWNER/MODEL.")],
    revision: Annotated[str, typer.Option(help="The commit of the model, 40 hexadecimal digits.")],
    sha256: Annotated[str | None, typer.Option(help="The SHA-256 that the files must have.")] = None,
    out: Annotated[Path | None, typer.Option(help="The new folder [the name of the model].")] = None,
) -> None:
    """Download a model of the Hugging Face hub.

    It is for `encoder.name = "huggingface"`; the encoder dinov2-small is downloaded when it is first used.

    Example: fedmcc encoders fetch facebook/dinov2-small --revision COMMIT
    """
    from fedmcc.networks.hub import fetch as download
    from fedmcc.terminal import output

    target = out or Path(name.rpartition("/")[2])
    identity = download(name, revision, target, sha256)
    output.say(f"{name} is in {target}, with the SHA-256 {identity}.")
    output.say(f"Use it with: --set encoder.name=huggingface --set encoder.path={target}")
