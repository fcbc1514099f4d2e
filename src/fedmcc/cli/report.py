"""Commands that draw runs: report, plot."""

from pathlib import Path
from typing import Annotated

import typer

from fedmcc.cli.app import Force, Quiet, RunFolder, command


@command
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run, or several to compare.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write [RUN/report.html].")] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Include images in the report.")
    ] = True,
    clusters: Annotated[
        int | None, typer.Option(help="Give the run another number of clusters, without training.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML report of a run, or a comparison of several.

    Example: fedmcc report runs/demo-001 --out demo.html
    """
    from fedmcc.errors import InputError
    from fedmcc.report.build import report_file, write_report
    from fedmcc.terminal import output

    if out is not None and out.suffix.lower() != ".html":
        raise InputError(f"{out} is not an HTML file: give --out a name that ends in .html.")
    if clusters is not None:
        from fedmcc.runs.corrections import set_clusters
        from fedmcc.runs.directory import load_run

        if len({path.resolve() for path in runs}) > 1:
            raise InputError("--clusters changes a run: give a single one.")
        report_file(runs, out, force)  # refuses before anything changes
        set_clusters(load_run(runs[0]), clusters, force)
    output.say(f"Wrote {write_report(runs, out, images, force=force)}.")


@command
def plot(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The folder to write the figures to.")],
    force: Force = False,
) -> None:
    """Draw the paper's figures for a run, as SVG and PNG.

    Example: fedmcc plot runs/PICTURES-001 --out figures
    """
    from fedmcc.report.figures import write_figures
    from fedmcc.terminal import output

    written = write_figures(run, out, force)
    for sentence in written.reasons():
        output.say(sentence)
    output.say(f"Wrote {', '.join(written.names)} to {out}.")
