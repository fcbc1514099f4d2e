"""Commands that correct the clusters of a run: name, merge."""

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
    from fedmcc.runs import clusters, directory

    opened = directory.load_run(run)
    edits = clusters.load_edits(opened)
    clusters.require_cluster(opened, cluster, edits, _count(opened))
    clusters.save_edits(opened, edits.with_name(cluster, name))
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
    from fedmcc.errors import InputError
    from fedmcc.runs import clusters, directory

    opened = directory.load_run(run)
    edits, count = clusters.load_edits(opened), _count(opened)
    for number in (cluster, *others):
        clusters.require_cluster(opened, number, edits, count)
    if len({cluster, *others}) < 1 + len(others):
        raise InputError("A cluster is given twice: give each number once.")
    if count - len(edits.merged) - len(others) < 2:
        raise InputError("A run needs 2 clusters or more: merge fewer of them.")
    clusters.save_edits(opened, edits.with_merged(cluster, others))
    _apply(opened)


def _count(run: "Run") -> int:
    """The number of clusters of a complete run."""
    from fedmcc.errors import InputError

    scores = run.read_json("scores.json")
    if not isinstance(scores.get("clusters"), int):
        raise InputError(f"{run.path} is not complete: finish it with `fedmcc resume`.")
    return int(scores["clusters"])


def _apply(run: "Run") -> None:
    """Write the tables and the report of a run again, if its images are on this machine."""
    from fedmcc.errors import InputError
    from fedmcc.report.build import FILE, write_report
    from fedmcc.runs import clusters
    from fedmcc.terminal import output

    try:
        clusters.rewrite(run)
    except InputError as error:
        output.warn(f"Predictions use it; assignments.csv and the report stay as they were. {error}")
        return
    output.say(f"Wrote {run.assignments_file}.")
    if (run.path / FILE).exists():
        output.say(f"Wrote {write_report([run.path])}.")
