"""The command that writes the network of a run for other programs: export."""

from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.app import Force, Quiet, RunFolder, command


@command
def export(
    run: RunFolder,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The ONNX file to write.")],
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the network with its preprocessing as an ONNX file.

    Example: fedmcc export runs/PICTURES-001 --onnx pictures.onnx
    """
    from fedmcc.errors import InputError
    from fedmcc.runs import directory
    from fedmcc.terminal import output

    opened = directory.load_run(run)
    if onnx.suffix.lower() != ".onnx":
        raise InputError(f"{onnx} is not an ONNX file: give --onnx a name that ends in .onnx.")
    from fedmcc.runs.export import export_onnx  # loads torch, which takes seconds

    written = export_onnx(opened, onnx, force)
    output.say(f"Wrote {written.model} and {written.card}.")
    output.say(f"onnxruntime and torch differ by at most {written.difference:.0e}.")
