"""Writes the report of one run, or the comparison of several, as one HTML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmcc.report.run_facts import read_run
from fedmcc.storage.atomic_files import require_own, require_possible, write_output

if TYPE_CHECKING:
    from fedmcc.runs.build import Experiment

FILE = "report.html"
# In the head of every report; the second one also in those of fedmcc 0.2.
MARKS = (b'name="generator" content="fedmcc"', b"default-src 'none'; img-src data: blob:;")


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    images: bool = True,
    experiment: "Experiment | None" = None,
    force: bool = False,
) -> Path:
    """Write the report of one run, or the comparison of several, and return its path.

    `experiment` is that of the finished run, if its images and network are in memory. A file that is not
    a report is replaced only with `force`.
    """
    paths = list({path.resolve(): path for path in paths}.values())  # a run given twice counts once
    runs = [read_run(path) for path in paths]
    out = report_file(paths, out, force)
    # These load plotly and scikit-learn, which takes seconds: a wrong path is refused before.
    from fedmcc.report.comparison import compare
    from fedmcc.report.content import image_content
    from fedmcc.report.page import render

    single = len(runs) == 1
    write_output(
        out, render(runs[0], image_content(runs[0], images, experiment)) if single else compare(runs)
    )
    return out


def report_file(paths: Sequence[Path], out: Path | None, force: bool) -> Path:
    """Where the report of these runs goes; raises InputError if it cannot be written there."""
    out = out or (paths[0] / FILE if len({path.resolve() for path in paths}) == 1 else Path(FILE))
    require_own(out, MARKS, force)
    require_possible(out.parent, out.name)
    return out
