"""Numbers and options as text for people."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fedmcc.report.charts import Stage
from fedmcc.report.run_facts import Facts

PARTITION_NAMES = {
    "iid": "IID",
    "by_class": "split by class",
    "dirichlet": "Dirichlet split",
    "by_group": "one per group",
}


def duration(seconds: float | int) -> str:
    """`2 min 27 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(count: float | int) -> str:
    """`12.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plural(count: int, noun: str) -> str:
    """`1 image`, `2,000 images`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def clients(facts: Facts) -> str:
    """`5 clients, Dirichlet split`."""
    count, partition = facts.option("partition", "clients", 1), facts.option("partition", "name", "iid")
    if count == 1:
        return "a single client"
    return f"{count:,} clients" + (f", {PARTITION_NAMES[partition]}" if partition in PARTITION_NAMES else "")


def day(started: object) -> str:
    """`3 February 2024`, or an empty string if the date cannot be read."""
    try:
        return f"{datetime.fromisoformat(str(started)):%-d %B %Y}"
    except ValueError:
        return ""


def rounds(stages: Sequence[Stage]) -> str:
    """`30 representation · 15 separation · 1 merging`."""
    if len(stages) == 1:
        return f"{stages[0].rounds:,}"
    return " · ".join(f"{stage.rounds:,} {stage.name}" for stage in stages)


def settings(facts: Facts, stages: Sequence[Stage]) -> list[tuple[str, str]]:
    """Names and values of the run's most important settings."""
    training = facts.config.get("training", {})
    alone = facts.option("partition", "clients", 1) == 1
    pairs: list[tuple[str, Any]] = [
        ("Method", facts.option("method")),
        ("Data set", data_name(facts)),
        ("Clusters", _cluster_count(facts)),
        ("Clients", clients(facts)),
        ("Encoder", facts.option("encoder")),
        ("Local epochs", facts.option("method", "epochs")),
        ("Batch size", training.get("batch_size")),
        ("Learning rate", training.get("learning_rate")),
        ("Seed", facts.config.get("seed")),
        ("Training time", duration(facts.seconds)),
        ("Data sent", None if alone else size(facts.bytes_sent)),
        ("Rounds", rounds(stages)),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def data_name(facts: Facts) -> str | None:
    """The name of the data set; of a folder of images, its own name without the path."""
    name: str | None = facts.option("data")
    root = facts.option("data", "root")
    return Path(root).name if name == "folder" and root else name


def _cluster_count(facts: Facts) -> str:
    """The number of clusters; with the limit, if the number was chosen from the images."""
    limit = facts.config.get("clusters") or 0
    chosen = facts.run.finished and 0 < facts.clusters < limit
    return f"{facts.clusters}, chosen from up to {limit}" if chosen else str(facts.clusters or "")
