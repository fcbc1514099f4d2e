"""Progress of a run: a live table of rounds and a bar in a terminal, one line per round in a log."""

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
from fedmcc.runs.pacing import Replanned
from fedmcc.terminal.output import err, is_quiet, say
from fedmcc.training.loop import Step

BAR_TEXT_COLUMNS = 56  # reserved for stage, round, speed and time left beside the bar
MAX_TABLE_ROUNDS = 12  # fewer in a low terminal
SELECTED = ("participants", "refused", "dropped")  # keys of a row: the clients selected for a round
HEADINGS = ("stage", "round", "loss", "ACC", "k-means", "clients", "sent", "seconds")


@runtime_checkable
class Display(Protocol):
    """Shows the progress of a run."""

    def step(self, step: Step) -> None:
        """Show that a step of the optimiser is done."""

    def round(self, scored: Scored) -> None:
        """Show that a round is done."""

    def replan(self, plan: Plan) -> None:
        """Count the work of a run anew, after it was changed."""


def watch(events: Iterable[Step | Scored | Finished | Replanned], plan: Plan) -> dict[str, Any]:
    """Show the events of a run until it is complete; returns the final scores."""
    with _display(plan) as display:
        for event in events:
            if isinstance(event, Step):
                display.step(event)
            elif isinstance(event, Scored):
                for sentence in absent_sites(event.row):
                    say(sentence)
                display.round(event)
            elif isinstance(event, Replanned):
                say(event.sentence)
                display.replan(event.plan)
            else:
                return event.scores
    raise AssertionError("A run ends with Finished.")


@contextmanager
def _display(plan: Plan) -> Iterator[Display]:
    if not err.is_terminal or is_quiet():  # a log line is printed by `say`, which is silent then
        yield LogLines(plan)
        return
    columns = (
        TextColumn("{task.fields[stage]} {task.fields[round]}"),
        BarColumn(max(4, min(40, err.width - BAR_TEXT_COLUMNS)), table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
    )
    table = LiveTable(Progress(*columns, console=err), plan, min(MAX_TABLE_ROUNDS, max(1, err.height - 6)))
    with Live(table, console=err, refresh_per_second=4):
        yield table


class LiveTable:
    """A table of the last rounds, and a bar with images per second and time left."""

    def __init__(self, progress: Progress, plan: Plan, max_rounds: int) -> None:
        self.progress, self.pace = progress, Pace(plan)
        self.rows: deque[tuple[str, ...]] = deque(maxlen=max_rounds)
        total = plan.total or None  # None: nothing is trained, and a bar would be full at once
        self.task = progress.add_task(
            "", total=total, completed=plan.done, stage="starting", round="", speed=""
        )

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for index, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return Group(table, self.progress) if self.rows else Group(self.progress)

    def step(self, step: Step) -> None:
        self.pace.add(step.samples)
        self.progress.update(self.task, advance=step.samples, speed=str(self.pace))

    def round(self, scored: Scored) -> None:
        self.rows.append(_cells(scored))
        number = f"{scored.row['round']}/{scored.rounds}"
        self.progress.update(self.task, stage=scored.row["stage"], round=number)

    def replan(self, plan: Plan) -> None:
        self.pace.plan = plan._replace(done=self.pace.plan.done)
        self.progress.update(self.task, total=plan.total)


class LogLines:
    """One line per round, for logs."""

    def __init__(self, plan: Plan) -> None:
        self.pace = Pace(plan)

    def step(self, step: Step) -> None:
        self.pace.add(step.samples)

    def round(self, scored: Scored) -> None:
        row = scored.row
        parts = [f"{row['stage']} {row['round']}/{scored.rounds}", row_summary(row)]
        if self.pace.done:
            parts += [str(self.pace), f"{format_duration(self.pace.left)} left"]
        say("  ".join(filter(None, parts)))

    def replan(self, plan: Plan) -> None:
        self.pace.plan = plan._replace(done=self.pace.plan.done)


@dataclass
class Pace:
    """Images per second so far, or seconds per round, and the seconds left at this speed."""

    plan: Plan
    done: int = 0  # since `started`
    started: float = field(default_factory=time.perf_counter)

    def __str__(self) -> str:
        if self.plan.unit == "images":
            return f"{self.speed:,.0f} images/s"
        return f"{1 / max(self.speed, 1e-9):,.0f} s/round"

    def add(self, count: int) -> None:
        """Count more images, or rounds, as done."""
        self.done += count

    @property
    def speed(self) -> float:
        """Images, or rounds, per second, including scoring and saving."""
        return self.done / max(time.perf_counter() - self.started, 1e-9)

    @property
    def left(self) -> float:
        """Seconds left."""
        return (self.plan.total - self.plan.done - self.done) / max(self.speed, 1e-9)


def _cells(scored: Scored) -> tuple[str, ...]:
    """The cells of a row of the live table, in the order of HEADINGS."""
    row = scored.row
    loss = "" if row["loss"] is None else f"{row['loss']:.3f}"
    scores = [f"{row[key]:.3f}".removeprefix("0") if key in row else "" for key in ("acc", "kmeans_acc")]
    count, selected = (sum(len(row.get(key, ())) for key in keys) for keys in (SELECTED[:1], SELECTED))
    clients = str(count) if count == selected else f"{count}/{selected}"
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
    """Loss, scores and clients of a row of metrics, on one line."""
    parts = [] if row["loss"] is None else [f"loss {row['loss']:.3f}"]
    scores = {"acc": "acc", "nmi": "nmi", "kmeans_acc": "kmeans"}
    if "acc" not in row:
        scores["confidence"] = "confidence"
    parts += [f"{name} {row[key]:.3f}".replace(" 0.", " .") for key, name in scores.items() if key in row]
    return " ".join(parts + _clients(row))


def absent_sites(row: Row) -> list[str]:
    """A sentence for each site that dropped out of a round or whose update was refused, with the reason."""
    names, place = row.get("sites", {}), f"{row['stage']}, round {row['round']}"
    dropped = [(int(client), "dropped out of", reason) for client, reason in row.get("reasons", {}).items()]
    refused = [(one["client"], "was refused in", one["reason"]) for one in row.get("refused", ()) if names]
    if "skipped" in row:
        return [
            f"{place[:1].upper()}{place[1:]} was skipped: {row['skipped'][:1].lower()}{row['skipped'][1:]}"
        ]
    return [
        f"Site {names[str(client)]} {verb} {place}: {reason[:1].lower()}{reason[1:]}"
        for client, verb, reason in sorted(dropped + refused)
    ]


def _clients(row: Row) -> list[str]:
    """Numbers of participants and of refused or dropped clients; empty for a single participant."""
    failed = [f"{len(row[key])} {key}" for key in ("refused", "dropped") if row.get(key)]
    count = len(row.get("participants", ()))
    return [f"{count} clients", *failed] if count > 1 or failed else []


def format_duration(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
