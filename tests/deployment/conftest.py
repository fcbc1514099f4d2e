"""The folder of a federation, and a Flower grid inside this process with real messages and apps."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmcc import config
from fedmcc.deployment.flower.signatures import Order, sign_reply
from fedmcc.deployment.server.coordinator import serve
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.setup.certificates import load_site_key
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.deployment.site.app import client_app
from fedmcc.runs import experiment
from fedmcc.runs.directory import Run

SMALL = {"hidden": 8, "projections": 4}
METHODS: dict[str, dict[str, Any]] = {  # and clusterings
    "fedmcc": {
        "method": {"name": "fedmcc", "rounds": 1, "hidden": 8},
        "clustering": {"name": "mcc", "rounds": 2, "epochs": 1, "hidden": 8},
    },
    "informative": {
        "method": {"name": "fedmcc", "rounds": 2, "hidden": 8},
        "clustering": {"name": "informative", "prototypes": 2.0},
    },
    "fedema": {
        "method": {"name": "fedema", "rounds": 3, "epochs": 1, **SMALL},
        "clustering": {"name": "none"},
    },
}


class InProcess(Grid):
    """A grid that calls the app of a node when a message is pushed; `spoil` may change or lose a reply.

    A spoilt reply is signed again, as a hostile site would do; `forge` changes a reply after that.
    """

    def __init__(self, nodes: Mapping[int, dict[str, Any]]) -> None:
        self.nodes, self.away, self.replies = dict(nodes), set(), {}
        self.spoil: Callable[[Message, Message], Message | None] = lambda message, reply: reply
        self.forge: Callable[[Message, Message], Message] = lambda message, reply: reply
        self.sent: list[Message] = []

    def get_node_ids(self):
        return [node for node in self.nodes if node not in self.away]

    def push_messages(self, messages):
        return [self._push(_over_the_wire(message)) for message in messages]

    def pull_messages(self, message_ids):
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def _push(self, message):
        self.sent.append(message)
        name, node = f"message-{len(self.sent)}", message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = name
        context = Context(1, node, self.nodes[node], RecordDict(), {})
        reply = Message(Error(5, "away"), reply_to=message)
        if node not in self.away:
            reply = client_app(message, context)
        if (spoilt := self.spoil(message, reply)) is not None:
            if not spoilt.has_error():
                _sign_again(self.nodes[node], message, spoilt)
            spoilt = self.forge(message, spoilt)
            self.replies[name] = spoilt if spoilt.has_error() else _over_the_wire(spoilt)
        return name

    set_run = create_message = send_and_receive = run = None


def _over_the_wire(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))


def _sign_again(node: Mapping[str, Any], message: Message, reply: Message) -> None:
    if "signature" in reply.content:
        facts = message.content["signature"]
        order = Order(*(facts[key] for key in Order._fields))
        sign_reply(reply.content, order, load_site_key(Path(node["folder"]) / "site.key"))


class Three:
    """Three sites that divide the digits like three simulated clients, and their server."""

    names = "abc"

    def __init__(self, folder: Path, name: str, **options: Any) -> None:
        self.folder = folder
        self.table: dict[str, Any] = {
            "clusters": 3,
            "seed": 3,
            "threads": 1,
            "device": "cpu",
            "data": {"name": "digits", "limit": 60},
            "encoder": {"width": 4},
            **METHODS[name],
            "partition": {"clients": len(self.names), "uneven": 0.5},
            "training": {"batch_size": 8},
            "evaluation": {"at_server": True},
            "privacy": {"reproducible": True},
        } | options
        spec = FederationSpec("127.0.0.1", 8000, 8001, tuple(self.names))
        self.operator = OperatorFolder(folder / "federation")
        if not self.operator.path.exists():
            create_federation(self.operator.path, spec, 30)
        rotated = self.names[-1] + self.names[:-1]  # nodes are not in the order of names
        self.grid = InProcess({10 + part: self.node(name) for part, name in enumerate(rotated)})
        nodes = tuple((node["client"], number) for number, node in self.grid.nodes.items())
        self.options: dict[str, Any] = {"nodes": nodes, "wait": 1.0, "round_timeout": 60.0}

    def node(self, name: str) -> dict[str, Any]:
        folders = {"folder": str(self.operator.site(name).path), "state-dir": str(self.folder / name)}
        return {"client": name, **folders, "shard": f"{self.names.index(name)}/{len(self.names)}"}

    @property
    def recipe(self) -> str:
        return config.dump(config.parse(self.table))

    def serve(self, run: str = "run", grid: Grid | None = None) -> Any:
        """Run the server; yields its events."""
        policy = JoinPolicy(tuple(self.names), **self.options)
        request = RunRequest(self.recipe, self.folder / run, policy, self.operator.path)
        return serve(grid or self.grid, request)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics so far."""
        return [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]

    def embedded(self) -> Path:
        """The same run in one process."""
        return experiment.run(config.parse(self.table), self.folder / "embedded").path


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the run and node that Flower writes into messages."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Four(Three):
    """Four sites, of which one can drop out of a round with secure aggregation."""

    names = "abcd"


@pytest.fixture
def four(tmp_path: Path) -> Callable[..., Four]:
    return lambda name="fedema", **options: Four(tmp_path, name, **options)


@pytest.fixture
def three(tmp_path: Path) -> Callable[..., Three]:
    return lambda name="fedema", **options: Three(tmp_path, name, **options)


@pytest.fixture
def operator(tmp_path: Path) -> OperatorFolder:
    spec = FederationSpec("127.0.0.1", 8000, 8001, ("north", "south"))
    return create_federation(tmp_path / "federation", spec, 365)


@pytest.fixture
def write_run() -> Callable[..., Run]:
    """Writes a run directory with this number of committed rounds."""

    def write(path: Path, rows: int, finished: bool = False) -> Run:
        (path / "resume").mkdir(parents=True)
        for name in ("config.toml", "environment.json"):
            (path / name).write_text("{}" if name.endswith("json") else "")
        for number in range(1, rows + 1):
            row = {"stage": "joint", "round": number, "loss": 1.5, "participants": [0], "seconds": 1.0}
            row |= {"sites": {"0": "north", "1": "south"}, "bytes": {"0": [100, 10], "1": [100, 0]}}
            Run(path).log(row)
        Run(path).write_json("resume/progress.json", {"rows": rows})
        if finished:
            Run(path).write_json("scores.json", {"images": 0})
        return Run(path)

    return write
