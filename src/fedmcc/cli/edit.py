"""Commands that correct the clusters of a run: name, merge, split."""

from typing import TYPE_CHECKING, Annotated

import typer

from fedmcc.cli.app import Quiet, RunFolder, command

if TYPE_CHECKING:
    from fedmcc.runs.directory import Run

Number = Annotated[int, typer.Argument(metavar="CLUSTER", help="The number of a cluster.")]


@command
def name(
    run: RunFolder,
    cluster: Number,
    name: Annotated[str, typer.Argument(metavar="NAME", help='Its name; "" removes it.')],
    quiet: Quiet = False,
) -> None:
    """Name a cluster in tables and reports.

    Example: fedmcc name runs/PICTURES-001 3 "cracked tiles"
    """
    from fedmcc.runs import corrections, directory

    opened = directory.load_run(run)
    corrections.name_cluster(opened, cluster, name)
    _apply(opened)


@command
def merge(
    run: RunFolder,
    cluster: Number,
    others: Annotated[list[int], typer.Argument(metavar="OTHER...", help="Clusters to add to it.")],
    quiet: Quiet = False,
) -> None:
    """Merge clusters into one.

    Example: fedmcc merge runs/PICTURES-001 3 7
    """
    from fedmcc.runs import corrections, directory

    opened = directory.load_run(run)
    corrections.merge_clusters(opened, cluster, others)
    _apply(opened)


@command
def split(
    run: RunFolder,
    cluster: Number,
    into: Annotated[int, typer.Option(help="Number of parts.")] = 2,
    quiet: Quiet = False,
) -> None:
    """Split a cluster by the features of its images.

    Example: fedmcc split runs/PICTURES-001 3
    """
    from fedmcc.runs import corrections, directory
    from fedmcc.terminal import output

    opened = directory.load_run(run)
    parts = corrections.split_cluster(opened, cluster, into).splits[-1].parts
    output.say(f"Cluster {cluster} is now {', '.join(map(str, parts))}.")
    _apply(opened)


def _apply(run: "Run") -> None:
    """Write the tables and the report of a run again, if its images are on this machine."""
    from fedmcc.report.refresh import refresh
    from fedmcc.terminal import output

    refreshed = refresh(run)
    if refreshed.warning:
        output.warn(refreshed.warning)
    for path in refreshed.written:
        output.say(f"Wrote {path}.")
