"""What an operator asks of a federation: who is there, how far the run is, what was sent."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedmcc.deployment.flower import processes
from fedmcc.deployment.flower.programs import CommandLine, FlowerError
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.runs.directory import Row, Run

SCORES = ("loss", "acc", "nmi", "kmeans_acc", "confidence", "balance", "silhouette")


class Attendance(NamedTuple):
    """One site."""

    name: str
    state: str  # online, offline, not seen, or unknown while the server does not run or is starting
    seen: str  # when it last came or went, in UTC
    rounds: int  # that counted
    down: int  # bytes
    up: int


@dataclass(frozen=True)
class Status:
    """A federation at a moment."""

    running: bool
    sites: tuple[Attendance, ...]
    run: Path | None  # the last one
    finished: bool
    row: Row | None  # its last round

    @property
    def sentence(self) -> str:
        """How far the run is."""
        if self.run is None:
            return "No run was begun yet."
        if self.row is None:
            return f"The run in {self.run} has no round yet."
        facts = [f"{self.row['stage']} round {self.row['round']}"]
        facts += [f"{key} {self.row[key]:.3f}" for key in SCORES if self.row.get(key) is not None]
        state = "is complete" if self.finished else "is under way"
        return f"The run in {self.run} {state}: {', '.join(facts)}."


def status(operator: OperatorFolder) -> Status:
    """Look at the server, if it runs, and at the run directory."""
    terms = operator.read_spec()
    running = processes.lock_holder(operator.server) is not None
    current = _written(operator, "current.json")
    run = Run(Path(current["run"])) if current else None
    rows = run.rows() if run else []
    known = _known(operator) if running else {}
    sites = tuple(_attendance(name, known.get(name), rows) for name in terms.sites)
    last = rows[-1] if rows else None
    return Status(running, sites, run.path if run else None, bool(run and run.finished), last)


def _written(operator: OperatorFolder, name: str) -> dict[str, Any]:
    """What a server has written down, or nothing yet."""
    path = operator.server / name
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _known(operator: OperatorFolder) -> dict[str, dict[str, Any]]:
    """What Flower says of each site, by name; nothing while it is still starting."""
    numbers = _written(operator, "nodes.json")
    try:
        nodes = {node["node-id"]: node for node in CommandLine(operator.flower_home).nodes()}
    except FlowerError:
        return {}
    return {name: nodes[str(node)] for name, node in numbers.items() if str(node) in nodes}


def _attendance(name: str, node: dict[str, Any] | None, rows: list[Row]) -> Attendance:
    state, seen = "unknown", ""
    if node is not None:
        state = "not seen" if node["status"] == "registered" else node["status"]
        when = {"online": "online-at", "offline": "offline-at"}.get(node["status"])
        seen = f"{'since ' if state == 'online' else ''}{node[when]}" if when else ""
    mine = [(row, number) for row in rows for number, site in row.get("sites", {}).items() if site == name]
    traffic = [row["bytes"].get(number, (0, 0)) for row, number in mine]
    counted = sum(int(number) in row["participants"] for row, number in mine)
    return Attendance(name, state, seen, counted, sum(t[0] for t in traffic), sum(t[1] for t in traffic))
