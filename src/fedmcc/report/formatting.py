"""Numbers and options in words, as people read them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fedmcc.report.charts import Stage
from fedmcc.report.run_facts import Facts


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


def plural(count: int, thing: str) -> str:
    """`1 image`, `2,000 images`."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def clients(facts: Facts) -> str:
    """Who the images belong to."""
    count, kind = facts.option("partition", "clients", 1), facts.option("partition", "name", "iid")
    words = {
        "iid": "evenly mixed",
        "by_class": "with classes of their own",
        "dirichlet": "unevenly mixed",
        "by_group": "one per owner",
    }
    if count == 1:
        return "one owner"
    return f"{count:,} clients" + (f", {words[kind]}" if kind in words else "")


def day(started: object) -> str:
    """The day on which a run began, or nothing."""
    try:
        return f"{datetime.fromisoformat(str(started)):%-d %B %Y}"
    except ValueError:
        return ""


def rounds(marks: Sequence[Stage]) -> str:
    """`30 representation · 15 separation · 1 merging`."""
    if len(marks) == 1:
        return f"{marks[0].rounds:,}"
    return " · ".join(f"{mark.rounds:,} {mark.name}" for mark in marks)


def settings(facts: Facts, marks: Sequence[Stage]) -> list[tuple[str, str]]:
    """What was run, as pairs of words."""
    training, encoder = facts.config.get("training", {}), facts.option("encoder", default="")
    alone = facts.option("partition", "clients", 1) == 1
    sent = sum(row.get("bytes_down", 0) + row.get("bytes_up", 0) for row in facts.rows)
    pairs: list[tuple[str, Any]] = [
        ("Method", facts.option("method")),
        ("Data set", facts.option("data")),
        ("Clusters", facts.config.get("clusters")),
        ("Owners", clients(facts)),
        ("Encoder", encoder),
        ("Local epochs", facts.option("method", "epochs")),
        ("Batch", training.get("batch_size")),
        ("Learning rate", training.get("learning_rate")),
        ("Seed", facts.config.get("seed")),
        ("Training", duration(sum(row["seconds"] for row in facts.rows))),
        ("Sent", None if alone else size(sent)),
        ("Rounds", rounds(marks)),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]
