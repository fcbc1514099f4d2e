"""Brings the files of a run up to date after a correction of its clusters."""

from pathlib import Path
from typing import NamedTuple

from fedmcc.errors import InputError
from fedmcc.report.build import FILE, write_report
from fedmcc.runs import clusters
from fedmcc.runs.directory import Run


class Refreshed(NamedTuple):
    """The files that were written again, or a warning if the images are not on this machine."""

    written: list[Path]
    warning: str | None = None


def refresh(run: Run) -> Refreshed:
    """Write the table, the scores and, if there is one, the report of a run again."""
    try:
        clusters.rewrite(run)
    except InputError as error:
        stored = "The correction is stored, but assignments.csv and the report stay as they were"
        return Refreshed([], f"{stored}: repeat it when the images are there. {error}")
    if not (run.path / FILE).exists():
        return Refreshed([run.assignments_file])
    return Refreshed([run.assignments_file, write_report([run.path])])
