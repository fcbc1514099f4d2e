"""Reads the files of a run directory that a report needs, without its images, its network or torch."""

import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64

from fedmcc.errors import InputError
from fedmcc.evaluation.assignments import JUDGED_COLUMNS, OUTLIER, read_csv
from fedmcc.report.schema import Table, is_config, is_evaluation, is_scores
from fedmcc.runs.directory import Row, Run, load_run

REQUIRED_KEYS = {"stage": str, "round": int, "seconds": float | int}  # of a row of metrics.jsonl


@dataclass(frozen=True, eq=False)
class Assignments:
    """Cluster, confidence, label and name of every scored image; the rest is None unless the table has it."""

    clusters: Int64[np.ndarray, " n"]
    confidence: Float32[np.ndarray, " n"] | None
    labels: Int64[np.ndarray, " n"] | None  # indices of `classes`; -1: the image has no label
    classes: tuple[str, ...]
    names: Sequence[str]
    second: Int64[np.ndarray, " n"] | None = None  # the second choice of each image
    distance: Float32[np.ndarray, " n"] | None = None  # to the centre of its cluster
    outlier: Bool[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        return len(self.clusters)


@dataclass(frozen=True, eq=False)
class Partition:
    """The images of each client, as in partition.npz."""

    clients: tuple[str, ...]
    rows: tuple[Int64[np.ndarray, " _"], ...]
    classes: tuple[str, ...] = ()
    holdings: Int64[np.ndarray, "clients classes"] | None = None  # images per client and class

    def owners(self, images: int) -> Int64[np.ndarray, " n"]:
        """The client that holds each image; an image of no client has the number of clients."""
        owners = np.full(images, len(self.rows), dtype=np.int64)
        for client, rows in enumerate(self.rows):
            owners[rows] = client
        return owners


class ProtocolScore(NamedTuple):
    """A score of the final network by an evaluation protocol, over the protocol's seeds."""

    protocol: str
    score: str
    mean: float
    std: float
    seeds: int
    split: str | None = None  # of the scored images
    images: int | None = None  # number of scored images


@dataclass(frozen=True, eq=False)
class Facts:
    """The text and numbers of a run directory."""

    run: Run
    config: Table
    config_text: str
    environment: Row
    rows: list[Row]
    scores: Row  # empty while the run is not finished
    evaluation: Row  # {protocol: {score: {"mean", "std", "values", ...}}}; empty without `fedmcc evaluate`
    assignments: Assignments | None
    partition: Partition | None

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.run.path.resolve().name

    @property
    def clusters(self) -> int:
        """Number of clusters of a finished run, or else in the configuration, or 0."""
        return self.scores.get("clusters") or self.config.get("clusters") or 0

    @property
    def cluster_names(self) -> dict[int, str]:
        """The names that the user gave to clusters."""
        names = self.run.read_json("clusters.json").get("names", {})
        if not isinstance(names, dict) or not all(key.isdecimal() for key in names):
            raise InputError(f"{self.run.path / 'clusters.json'} is damaged: restore it, or remove it.")
        return {int(key): str(name) for key, name in names.items()}

    @property
    def duplicates(self) -> list[list[str]]:
        """Names of images that look the same, in groups; empty if none were found or searched."""
        path = self.run.path / "duplicates.csv"
        groups: dict[str, list[str]] = {}
        try:
            for line in read_csv(path):
                groups.setdefault(line["duplicate_of"], [line["duplicate_of"]]).append(line["image"])
        except FileNotFoundError:
            return []
        except KeyError:
            raise InputError(f"{path} is damaged: restore it from a copy, or remove it.") from None
        return list(groups.values())

    @property
    def seconds(self) -> float:
        """Duration of all rounds."""
        return float(sum(row["seconds"] for row in self.rows))

    @property
    def bytes_sent(self) -> int:
        """Bytes to and from all clients."""
        return sum(row.get("bytes_down", 0) + row.get("bytes_up", 0) for row in self.rows)

    def option(self, section: str, key: str = "name", default: Any = None) -> Any:
        """A value of the configuration."""
        return self.config.get(section, {}).get(key, default)

    @property
    def scores_training_images(self) -> bool:
        """Whether the scored images are the training images."""
        return self.option("evaluation", "split") is None


def protocol_scores(facts: Facts) -> Iterator[ProtocolScore]:
    """Every score in evaluation.json."""
    for protocol, scores in facts.evaluation.items():
        for name, score in scores.items():
            mean, std = float(score["mean"]), float(score.get("std", 0))
            scored = score.get("split"), score.get("images")
            yield ProtocolScore(protocol, name, mean, std, len(score["values"]), *scored)


def read_run(path: Path) -> Facts:
    """Read a run that has finished at least one round; otherwise raise InputError."""
    run = load_run(path)
    text, config = _config(run)
    rows = run.rows()
    if not rows:
        raise InputError(f"{path} has no finished round yet: continue it with `fedmcc resume`.")
    for number, row in enumerate(rows, 1):
        _check_row(row, f"Line {number} of {run.metrics_file}")
    return Facts(
        run=run,
        config=config,
        config_text=text,
        environment=run.read_json("environment.json"),
        rows=rows,
        scores=_checked_json(run, "scores.json", is_scores),
        evaluation=_checked_json(run, "evaluation.json", is_evaluation),
        assignments=_assignments(run.assignments_file) if run.assignments_file.exists() else None,
        partition=_partition(run.path / "partition.npz"),
    )


def _config(run: Run) -> tuple[str, Table]:
    try:
        text = run.config_file.read_text()
        config = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InputError(f"{run.config_file} is damaged: restore it from a copy.") from None
    if not is_config(config):
        raise InputError(
            f"{run.config_file} was not written by fedmcc: give a directory that `fedmcc run` wrote."
        )
    return text, config


def _checked_json(run: Run, name: str, is_valid: Callable[[Table], bool]) -> Row:
    content = run.read_json(name)
    if not is_valid(content):
        raise InputError(f"{run.path / name} is damaged: restore it from a copy, or remove it.")
    return content


def _check_row(row: object, where: str) -> None:
    if not isinstance(row, dict) or any(
        not isinstance(row.get(key), kind) for key, kind in REQUIRED_KEYS.items()
    ):
        raise InputError(f"{where} is not a round of a fedmcc run: give a directory that `fedmcc run` wrote.")


def _assignments(path: Path) -> Assignments:
    try:
        lines = read_csv(path)
        clusters = np.array([int(line["cluster"]) for line in lines], dtype=np.int64)
        if clusters.min() < 0:  # raises ValueError itself if the file has no images
            raise ValueError
        labels = [line["label"] for line in lines]
        classes = tuple(sorted({label for label in labels if label}, key=_natural))
        indices = {name: index for index, name in enumerate(classes)} | {"": -1}
        confidence = [line["confidence"] for line in lines]
        return Assignments(
            clusters=clusters,
            confidence=np.array(confidence, dtype=np.float32) if all(confidence) else None,
            labels=np.array([indices[label] for label in labels], dtype=np.int64) if classes else None,
            classes=classes,
            names=[line["image"] for line in lines],
            **_judgement(lines),
        )
    except (KeyError, ValueError, TypeError):
        raise InputError(f"{path} is damaged: restore it from a copy.") from None


def _judgement(lines: Sequence[dict[str, str]]) -> dict[str, np.ndarray]:
    """The columns that only some tables have."""
    if not lines or any(name not in lines[0] for name in JUDGED_COLUMNS):
        return {}
    return {
        "second": np.array([int(line["second"]) for line in lines], dtype=np.int64),
        "distance": np.array([float(line["distance"]) for line in lines], dtype=np.float32),
        "outlier": np.array([line["kind"] == OUTLIER for line in lines]),
    }


def _natural(name: str) -> tuple[int, str]:
    """Sort key: numbers by value, then other names alphabetically."""
    return (int(name), name) if name.isdigit() else (2**62, name)


def _partition(path: Path) -> Partition | None:
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            clients = tuple(map(str, arrays["clients"]))
            rows = tuple(arrays[f"rows_{client}"] for client in range(len(clients)))
            if "holdings" not in arrays:
                return Partition(clients, rows)
            return Partition(clients, rows, tuple(map(str, arrays["classes"])), arrays["holdings"])
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{path} is damaged: restore it from a copy.") from None
