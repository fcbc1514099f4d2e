"""The state of a federation for its operator: which sites are connected, how far the run is, bytes sent."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedmcc.deployment.flower import processes
from fedmcc.deployment.flower.programs import CommandLine, FlowerError
from fedmcc.deployment.setup.layout import OperatorFolder
from fedmcc.runs.directory import Row, Run

SCORES = ("loss", "acc", "nmi", "kmeans_acc", "confidence", "balance", "silhouette")


class SiteStatus(NamedTuple):
    """The state of one site."""

    name: str
    state: str  # online, offline, never connected; server not running; unknown while the server is starting
    seen: str  # when it last connected or disconnected, in UTC
    rounds: int  # in which its update was averaged
    down: int  # bytes
    up: int


@dataclass(frozen=True)
class Status:
    """The state of a federation."""

    running: bool
    sites: tuple[SiteStatus, ...]
    run: Path | None  # the run that was started last
    finished: bool
    row: Row | None  # the last round of the run

    def to_json(self) -> str:
        """The state as JSON, for other programs."""
        table = {
            "running": self.running,
            "sites": [site._asdict() for site in self.sites],
            "run": None if self.run is None else str(self.run),
            "finished": self.finished,
            "last_round": self.row,
        }
        return json.dumps(table)

    @property
    def summary(self) -> str:
        """How far the run is."""
        if self.run is None:
            return "No run was started yet."
        if self.row is None:
            return f"The run in {self.run} has no finished round yet."
        facts = [f"{self.row['stage']} round {self.row['round']}"]
        facts += [f"{key} {self.row[key]:.3f}" for key in SCORES if self.row.get(key) is not None]
        state = "is complete" if self.finished else "is not complete"
        return f"The run in {self.run} {state}: {', '.join(facts)}."


def read_status(operator: OperatorFolder) -> Status:
    """Read the state from the server, if it is running, and from the run directory."""
    spec = operator.read_spec()
    running = processes.lock_holder(operator.server) is not None
    current = _read_json(operator, "current.json")
    run = Run(Path(current["run"])) if current else None
    rows = run.committed_rows() if run else []
    nodes = _nodes(operator) if running else {}
    without = "unknown" if running else "server not running"
    sites = tuple(_site_status(name, nodes.get(name), rows, without) for name in spec.sites)
    last = rows[-1] if rows else None
    return Status(running, sites, run.path if run else None, bool(run and run.finished), last)


def _read_json(operator: OperatorFolder, name: str) -> dict[str, Any]:
    """A file that the server writes; empty if it does not exist yet."""
    path = operator.server / name
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _nodes(operator: OperatorFolder) -> dict[str, dict[str, Any]]:
    """Flower's entry for each site by name; empty while Flower is starting."""
    node_ids = _read_json(operator, "nodes.json")
    try:
        nodes = {node["node-id"]: node for node in CommandLine(operator.flower_home).nodes()}
    except FlowerError:
        return {}
    return {name: nodes[str(node)] for name, node in node_ids.items() if str(node) in nodes}


def _site_status(name: str, node: dict[str, Any] | None, rows: list[Row], without: str) -> SiteStatus:
    """The state of a site; `without` if Flower has no node of it."""
    state, seen = without, ""
    if node is not None:
        state = "never connected" if node["status"] == "registered" else node["status"]
        when = {"online": "online-at", "offline": "offline-at"}.get(node["status"])
        seen = f"{'since ' if state == 'online' else ''}{node[when]}" if when else ""
    own = [(row, client) for row in rows for client, site in row.get("sites", {}).items() if site == name]
    traffic = [row["bytes"].get(client, (0, 0)) for row, client in own]
    averaged = sum(int(client) in row["participants"] for row, client in own)
    return SiteStatus(name, state, seen, averaged, sum(t[0] for t in traffic), sum(t[1] for t in traffic))
