"""How far a run is: a live table of rounds over a bar in a terminal, a line per round in a log."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rich import filesize
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from fedmcc.runs.directory import Row
from fedmcc.runs.experiment import Finished, Plan, Scored
from fedmcc.terminal.output import err, say
from fedmcc.training.loop import Step

WORDS = 56  # columns that stage, round, speed and time left may take beside the bar
ROUNDS = 12  # rows of the live table, where the terminal has as many
TOOK_PART = ("participants", "refused", "dropped")
HEADINGS = ("stage", "round", "loss", "ACC", "k-means", "clients", "sent", "seconds")


@runtime_checkable
class Meter(Protocol):
    """Shows how far a run is."""

    def step(self, step: Step) -> None:
        """An optimiser's step is done."""

    def round(self, scored: Scored) -> None:
        """A round is done and scored."""


def watch(events: Iterable[Step | Scored | Finished], plan: Plan) -> dict[str, Any]:
    """Show a run until it is finished; returns the final scores."""
    with _meter(plan) as meter:
        for event in events:
            if isinstance(event, Step):
                meter.step(event)
            elif isinstance(event, Scored):
                meter.round(event)
            else:
                return event.scores
    raise AssertionError("A run ends with Finished.")


@contextmanager
def _meter(plan: Plan) -> Iterator[Meter]:
    if not err.is_terminal:
        yield Lines(plan)
        return
    columns = (
        TextColumn("{task.fields[stage]} {task.fields[round]}"),
        BarColumn(max(4, min(40, err.width - WORDS)), table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
    )
    board = Board(Progress(*columns, console=err), plan, min(ROUNDS, max(1, err.height - 6)))
    with Live(board, console=err, refresh_per_second=4):
        yield board


class Board:
    """The last rounds in a table, and a bar: images per second, time left."""

    def __init__(self, progress: Progress, plan: Plan, most: int) -> None:
        self.progress, self.pace = progress, Pace(plan)
        self.rows: deque[tuple[str, ...]] = deque(maxlen=most)
        self.task = progress.add_task(
            "", total=plan.total, completed=plan.done, stage="starting", round="", speed=""
        )

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for place, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*row)
        return Group(table, self.progress) if self.rows else Group(self.progress)

    def step(self, step: Step) -> None:
        self.pace.add(step.samples)
        self.progress.update(self.task, advance=step.samples, speed=str(self.pace))

    def round(self, scored: Scored) -> None:
        self.rows.append(_cells(scored))
        place = f"{scored.row['round']}/{scored.rounds}"
        self.progress.update(self.task, stage=scored.row["stage"], round=place)


class Lines:
    """A line per round, for logs."""

    def __init__(self, plan: Plan) -> None:
        self.pace = Pace(plan)

    def step(self, step: Step) -> None:
        self.pace.add(step.samples)

    def round(self, scored: Scored) -> None:
        row = scored.row
        say(
            f"{row['stage']} {row['round']}/{scored.rounds}  {row_summary(row)}  "
            f"{self.pace}  {format_duration(self.pace.left)} left"
        )


@dataclass
class Pace:
    """Images per second so far, or seconds per round, and the seconds left at that pace."""

    plan: Plan
    seen: int = 0
    started: float = field(default_factory=time.perf_counter)

    def __str__(self) -> str:
        if self.plan.unit == "images":
            return f"{self.speed:,.0f} images/s"
        return f"{1 / max(self.speed, 1e-9):,.0f} s/round" if self.seen else ""

    def add(self, more: int) -> None:
        """So many more were seen."""
        self.seen += more

    @property
    def speed(self) -> float:
        """Images, or rounds, per second; scoring and saving included."""
        return self.seen / max(time.perf_counter() - self.started, 1e-9)

    @property
    def left(self) -> float:
        """Seconds to the end."""
        return (self.plan.total - self.plan.done - self.seen) / max(self.speed, 1e-9)


def _cells(scored: Scored) -> tuple[str, ...]:
    """A row of the live table, under HEADINGS."""
    row = scored.row
    loss = "" if row["loss"] is None else f"{row['loss']:.3f}"
    scores = [f"{row[key]:.3f}".removeprefix("0") if key in row else "" for key in ("acc", "kmeans_acc")]
    count, asked = (sum(len(row.get(key, ())) for key in keys) for keys in (TOOK_PART[:1], TOOK_PART))
    clients = str(count) if count == asked else f"{count}/{asked}"
    sent = filesize.decimal(row["bytes_down"] + row["bytes_up"])
    return (
        row["stage"],
        f"{row['round']}/{scored.rounds}",
        loss,
        *scores,
        clients,
        sent,
        f"{row['seconds']:.1f}",
    )


def row_summary(row: Row) -> str:
    """What a row of metrics says, in a few words."""
    facts = [] if row["loss"] is None else [f"loss {row['loss']:.3f}"]
    scores = {"acc": "acc", "nmi": "nmi", "kmeans_acc": "kmeans"}
    if "acc" not in row:
        scores["confidence"] = "confidence"
    facts += [f"{name} {row[key]:.3f}".replace(" 0.", " .") for key, name in scores.items() if key in row]
    return " ".join(facts + _clients(row))


def _clients(row: Row) -> list[str]:
    """How many took part, where there are several, and how many of them in vain."""
    in_vain, count = _in_vain(row), len(row.get("participants", ()))
    return [f"{count} clients", *in_vain] if count > 1 or in_vain else []


def _in_vain(row: Row) -> list[str]:
    return [f"{len(row[key])} {key}" for key in ("refused", "dropped") if row.get(key)]


def format_duration(seconds: float) -> str:
    """Seconds as minutes and hours."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
