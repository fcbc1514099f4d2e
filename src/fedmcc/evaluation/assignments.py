"""The cluster of every image, as a CSV table."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fedmcc.data.base import ImageSet


@dataclass(frozen=True, eq=False)
class Assignment:
    """The cluster of each image, with the confidence of the assignment."""

    clusters: Int[np.ndarray, " n"]
    confidence: Float[np.ndarray, " n"] | None  # None: the assignments are hard

    @classmethod
    def from_soft(cls, assignments: Float[np.ndarray, "n k"]) -> "Assignment":
        """The most likely cluster of each image."""
        return cls(assignments.argmax(axis=1), assignments.max(axis=1))


def assignments_csv(images: ImageSet, assignment: Assignment) -> str:
    """One line per image: name, cluster, confidence, and its label if it has one."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["image", "cluster", "confidence", "label"])
    for row, (name, label) in enumerate(names_and_labels(images)):
        confidence = "" if assignment.confidence is None else f"{assignment.confidence[row]:.4f}"
        lines.writerow([name, assignment.clusters[row], confidence, label])
    return text.getvalue()


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
