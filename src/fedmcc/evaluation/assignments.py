"""The cluster of every image as a table that people and spreadsheets read."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fedmcc.data.base import ImageSet


@dataclass(frozen=True, eq=False)
class Assignment:
    """Clusters of images, and how sure each is."""

    clusters: Int[np.ndarray, " n"]
    confidence: Float[np.ndarray, " n"] | None  # None: the clusters are hard

    @classmethod
    def of_soft(cls, assignments: Float[np.ndarray, "n k"]) -> "Assignment":
        """The likeliest clusters of soft assignments."""
        return cls(assignments.argmax(axis=1), assignments.max(axis=1))


def assignments_csv(images: ImageSet, assignment: Assignment) -> str:
    """A line per image: name, cluster, confidence, and its label where it has one."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["image", "cluster", "confidence", "label"])
    for row, (name, label) in enumerate(names_and_labels(images)):
        sure = "" if assignment.confidence is None else f"{assignment.confidence[row]:.4f}"
        lines.writerow([name, assignment.clusters[row], sure, label])
    return text.getvalue()


def names_and_labels(images: ImageSet) -> Iterator[tuple[str, str]]:
    """What the table calls each image, and its label, which is empty where there is none."""
    return ((_name(images, row), _label(images, row)) for row in range(len(images)))


def _name(images: ImageSet, row: int) -> str:
    name = str(row) if images.names is None else images.names[row]
    return name.encode(errors="backslashreplace").decode()  # file names may hold bytes that are no text


def _label(images: ImageSet, row: int) -> str:
    if images.labels is None or images.labels[row] < 0:
        return ""
    label = int(images.labels[row])
    return images.classes[label] if images.classes else str(label)
