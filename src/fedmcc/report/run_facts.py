"""What a run directory says, without its images and its network; no torch is needed."""

import csv
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from fedmcc.errors import InputError
from fedmcc.report.schema import Table, is_config, is_evaluation, is_scores
from fedmcc.runs.directory import Row, Run, load_run

NEEDED = {"stage": str, "round": int, "seconds": float | int}


@dataclass(frozen=True, eq=False)
class Assigned:
    """The cluster of every scored image, and what else is known about it."""

    clusters: Int64[np.ndarray, " n"]
    confidence: Float32[np.ndarray, " n"] | None
    labels: Int64[np.ndarray, " n"] | None  # places in `classes`; -1: this image has none
    classes: tuple[str, ...]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.clusters)


@dataclass(frozen=True, eq=False)
class Shares:
    """Who holds what, as partition.npz says."""

    clients: tuple[str, ...]
    rows: tuple[Int64[np.ndarray, " _"], ...]
    classes: tuple[str, ...] = ()
    holdings: Int64[np.ndarray, "clients classes"] | None = None

    def owners(self) -> Int64[np.ndarray, " n"]:
        """The client that holds each image of the set trained on."""
        found = np.zeros(sum(map(len, self.rows)), dtype=np.int64)
        for client, rows in enumerate(self.rows):
            found[rows] = client
        return found


class Measured(NamedTuple):
    """What a protocol says of a run's final network, over its own seeds."""

    protocol: str
    score: str
    mean: float
    std: float
    seeds: int
    split: str | None = None  # what was scored,
    images: int | None = None  # and how many


@dataclass(frozen=True, eq=False)
class Facts:
    """All that a run directory says in text and numbers."""

    run: Run
    config: Table
    config_text: str
    environment: Row
    rows: list[Row]
    scores: Row  # nothing while the run is not finished
    evaluation: Row  # protocol, then score, then mean, std and values; mostly nothing
    assigned: Assigned | None
    shares: Shares | None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.path.resolve().name

    def option(self, section: str, key: str = "name", default: Any = None) -> Any:
        """A value of the configuration."""
        return self.config.get(section, {}).get(key, default)

    @property
    def scored_itself(self) -> bool:
        """Whether the images that are scored are those trained on."""
        return self.option("evaluation", "split") is None


def measured(facts: Facts) -> Iterator[Measured]:
    """Each protocol and score of evaluation.json."""
    for protocol, scores in facts.evaluation.items():
        for score, found in scores.items():
            spread = float(found["mean"]), float(found.get("std", 0))
            scored = found.get("split"), found.get("images")
            yield Measured(protocol, score, *spread, len(found["values"]), *scored)


def read(path: Path) -> Facts:
    """A run that has finished a round at least, refused in a sentence where it has not."""
    run = load_run(path)
    text, config = _config(run)
    rows = run.rows()
    if not rows:
        raise InputError(f"{path} has no finished round yet: let `fedmcc run` or `fedmcc resume` do one.")
    for number, row in enumerate(rows, 1):
        _check(row, f"Line {number} of {run.metrics_file}")
    return Facts(
        run=run,
        config=config,
        config_text=text,
        environment=run.read_json("environment.json"),
        rows=rows,
        scores=_shaped(run, "scores.json", is_scores),
        evaluation=_shaped(run, "evaluation.json", is_evaluation),
        assigned=_assigned(run.assignments_file) if run.assignments_file.exists() else None,
        shares=_shares(run.path / "partition.npz"),
    )


def _config(run: Run) -> tuple[str, Table]:
    try:
        text = run.config_file.read_text()
        config = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InputError(f"{run.config_file} is damaged: restore it from a copy.") from None
    if not is_config(config):
        raise InputError(
            f"{run.config_file} is not of a fedmcc run: give a directory that `fedmcc run` wrote."
        )
    return text, config


def _shaped(run: Run, name: str, right: Callable[[Table], bool]) -> Row:
    found = run.read_json(name)
    if not right(found):
        raise InputError(f"{run.path / name} is damaged: restore it from a copy, or remove it.")
    return found


def _check(row: object, where: str) -> None:
    if not isinstance(row, dict) or not all(isinstance(row.get(key), kind) for key, kind in NEEDED.items()):
        raise InputError(f"{where} is not a round of a fedmcc run: give a directory that `fedmcc run` wrote.")


def _assigned(path: Path) -> Assigned:
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        clusters = np.array([int(line["cluster"]) for line in lines], dtype=np.int64)
        if clusters.min() < 0:  # or there is none, which is as wrong
            raise ValueError
        labels = [line["label"] for line in lines]
        classes = tuple(sorted({label for label in labels if label}, key=_natural))
        place = {name: number for number, name in enumerate(classes)} | {"": -1}
        sure = [line["confidence"] for line in lines]
        return Assigned(
            clusters=clusters,
            confidence=np.array(sure, dtype=np.float32) if all(sure) else None,
            labels=np.array([place[label] for label in labels], dtype=np.int64) if classes else None,
            classes=classes,
            names=[line["image"] for line in lines],
        )
    except (KeyError, ValueError, TypeError, csv.Error):
        raise InputError(f"{path} is damaged: restore it from a copy.") from None


def _natural(name: str) -> tuple[int, str]:
    """Numbers by their value, then words by the alphabet."""
    return (int(name), name) if name.isdigit() else (2**62, name)


def _shares(path: Path) -> Shares | None:
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            clients = tuple(map(str, found["clients"]))
            rows = tuple(found[f"rows_{client}"] for client in range(len(clients)))
            if "holdings" not in found:
                return Shares(clients, rows)
            return Shares(clients, rows, tuple(map(str, found["classes"])), found["holdings"])
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{path} is damaged: restore it from a copy.") from None
