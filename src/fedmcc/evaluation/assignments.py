"""The cluster of every image, as a table: CSV or JSON lines."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from fedmcc.data.base import ImageSet
from fedmcc.errors import InputError

COLUMNS = ("image", "cluster", "confidence", "label")
JUDGED_COLUMNS = ("second", "distance", "kind")  # of assignments with a Judgement
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a name that starts so gets a ', or spreadsheets would compute it
TYPICAL, OUTLIER = "typical", "outlier"  # values of the column `kind`

Soft = Float[np.ndarray, "n k"]


@dataclass(frozen=True, eq=False)
class Judgement:
    """How well each image fits its cluster."""

    second: Int[np.ndarray, " n"]  # the cluster of the second largest soft assignment
    distance: Float[np.ndarray, " n"]  # 1 - cosine to the centre of the cluster: 0 is typical
    outlier: Bool[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Assignment:
    """The cluster of each image, with the confidence of the assignment."""

    clusters: Int[np.ndarray, " n"]
    confidence: Float[np.ndarray, " n"] | None  # None: the assignments are hard
    judgement: Judgement | None = None
    names: Mapping[int, str] = field(default_factory=dict)  # of clusters

    @classmethod
    def from_soft(cls, assignments: Soft, calibrated: Soft | None = None) -> "Assignment":
        """The most likely cluster of each image; its confidence is the calibrated assignment, if given."""
        clusters = assignments.argmax(axis=1)
        values = assignments if calibrated is None else calibrated
        return cls(clusters, np.take_along_axis(values, clusters[:, None], axis=1)[:, 0])


def second_choice(assignments: Soft) -> Int[np.ndarray, " n"]:
    """The cluster of the second largest soft assignment of each image."""
    others = np.array(assignments)
    others[np.arange(len(others)), others.argmax(axis=1)] = -np.inf
    return np.asarray(others.argmax(axis=1))


def fold(assignments: Soft, merged: Mapping[int, int]) -> Soft:
    """Soft assignments after clusters were merged: the sums of their columns; merged columns are 0."""
    if not merged:
        return assignments
    folded = np.array(assignments)
    for source, target in merged.items():
        folded[:, target] += folded[:, source]
        folded[:, source] = 0
    return folded


def assignments_csv(images: ImageSet, assignment: Assignment) -> str:
    """One line per image below a header: name, cluster, confidence, label, and what else is known."""
    return csv_lines([columns_of(assignment)]) + csv_body(images, assignment)


def csv_lines(rows: Any) -> str:
    """Rows of cells as lines of CSV, which `read_csv` reads."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(_text, row)] for row in rows)
    return text.getvalue()


def csv_body(images: ImageSet, assignment: Assignment) -> str:
    """The lines of `assignments_csv` without the header."""
    return csv_lines(row.values() for row in table_rows(images, assignment))


def json_lines(images: ImageSet, assignment: Assignment) -> str:
    """One JSON object per image."""
    return "".join(json.dumps(row) + "\n" for row in table_rows(images, assignment))


def columns_of(assignment: Assignment) -> list[str]:
    """The names of the columns of a table."""
    judged = JUDGED_COLUMNS if assignment.judgement is not None else ()
    return [*COLUMNS, *judged, *(("name",) if assignment.names else ())]


def table_rows(images: ImageSet, assignment: Assignment) -> Iterator[dict[str, Any]]:
    """The cells of each image, by column."""
    judgement = assignment.judgement
    for row, (name, label) in enumerate(names_and_labels(images)):
        cluster = int(assignment.clusters[row])
        confidence = None if assignment.confidence is None else round(float(assignment.confidence[row]), 4)
        cells: dict[str, Any] = dict(zip(COLUMNS, (name, cluster, confidence, label or None), strict=True))
        if judgement is not None:
            kind = OUTLIER if judgement.outlier[row] else TYPICAL
            values = int(judgement.second[row]), round(float(judgement.distance[row]), 4), kind
            cells |= zip(JUDGED_COLUMNS, values, strict=True)
        if assignment.names:
            cells["name"] = assignment.names.get(cluster)
        yield cells


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table of images by column; raises InputError if it is damaged."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        return [dict(zip(header, map(_unquoted, row), strict=True)) for row in rows]
    except (ValueError, csv.Error):  # also bytes that are no text, and a row of another length
        raise InputError(f"{path} is damaged: restore it from a copy.") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.lstrip("'").startswith(FORMULA) else text


def _unquoted(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA) else cell


def names_and_labels(images: ImageSet) -> Iterator[tuple[str, str]]:
    """Name and label of each image as the table shows them; the label is empty if there is none."""
    return ((_name(images, row), _label(images, row)) for row in range(len(images)))


def _name(images: ImageSet, row: int) -> str:
    name = str(row) if images.names is None else images.names[row]
    return name.encode(errors="backslashreplace").decode()  # file names may contain bytes that are not text


def _label(images: ImageSet, row: int) -> str:
    if images.labels is None or images.labels[row] < 0:
        return ""
    label = int(images.labels[row])
    return images.classes[label] if images.classes else str(label)
