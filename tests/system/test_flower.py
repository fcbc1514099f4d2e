"""A federation on this machine with Flower's programs and three sites, some of which are killed."""

import json
import os
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedmcc import config
from fedmcc.deployment.flower import processes, programs
from fedmcc.deployment.server.bundle import write_bundle
from fedmcc.deployment.server.launch import running_server
from fedmcc.deployment.server.request import JoinPolicy, RunRequest
from fedmcc.deployment.server.submit import submit
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, make_private_folders
from fedmcc.deployment.site.preload import preloaded
from fedmcc.runs import experiment

SITES_ONLY = ("seconds", "sites", "waiting", "transport", "training", "reasons")
TIMEOUT_SECONDS = 900.0
pytestmark = pytest.mark.timeout(1800)
SMALL = {"hidden": 16, "projections": 8}
METHODS: dict[str, dict[str, Any]] = {
    "fedmcc": {"name": "fedmcc", "rounds": 2, "hidden": 16},
    "fedema": {"name": "fedema", "rounds": 2, "epochs": 1, **SMALL},
}
CLUSTERINGS = {"fedmcc": {"name": "mcc", "rounds": 2, "epochs": 1, "hidden": 16}, "fedema": {"name": "none"}}


def recipe(tiny: str, name: str, **options: Any) -> str:
    """A short run of three clients on synthetic images, so that no process has to load scikit-learn."""
    table = tomllib.loads(tiny) | {"data": {"name": "synthetic", "limit": 150}, "partition": {"clients": 3}}
    table |= {
        "method": METHODS[name] | options,
        "clustering": CLUSTERINGS[name],
        "training": {"batch_size": 16},
    }
    table |= {"evaluation": {"at_server": True}, "privacy": {"reproducible": True}}
    return config.dump(config.parse(table))


def rows(run: Path) -> list[dict[str, Any]]:
    metrics = run / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def outcome(run: Path) -> tuple[Any, ...]:
    timeless = [{key: value for key, value in row.items() if key not in SITES_ONLY} for row in rows(run)]
    files = ("checkpoints/final.safetensors", "assignments.csv", "scores.json")
    return (timeless, *((run / name).read_bytes() for name in files))


def embedded(text: str, run: Path) -> tuple[Any, ...]:
    """The outcome of this recipe in one process."""
    return outcome(experiment.run(config.parse(tomllib.loads(text)), run).path)


def wait_until(done: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


def kill(home: Path, name: str) -> None:
    """Kill the processes with this FLWR_HOME that run this program."""
    for process in processes.processes_of(home):
        if name in Path(f"/proc/{process}/cmdline").read_text():
            os.kill(process, signal.SIGKILL)


class Federation:
    """The server of a federation without its proxy, and three sites that divide a data set."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.stack = home, stack
        spec = FederationSpec("127.0.0.1", processes.free_port(), processes.free_port(), tuple("abc"))
        self.operator = create_federation(home / "federation", spec, 1)
        self.server = stack.enter_context(running_server(self.operator, proxied=False))
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> None:
        site, log = self.operator.site(name), self.home / f"site-{name}.log"
        make_private_folders([site.flower_home])
        folders = {"folder": str(site.path), "state-dir": str(site.state)}
        node = {"client": name, "shard": f"{'abc'.index(name)}/3", **folders}
        (site.path / "node.toml").write_text(tomli_w.dumps(node))
        own = (site.read()[1], site.path / "node.toml", processes.free_port())
        self.stack.callback(processes.terminate_all, site.flower_home)
        self.stack.enter_context(preloaded(site.flower_home, log))
        self.stack.enter_context(
            processes.running(programs.supernode_command(site, *own), site.flower_home, log)
        )

    def submit(self, text: str, run: Path) -> None:
        self.log_sizes = {name: len(self.log(name)) for name in "abc"}
        policy = JoinPolicy(min_sites=3, wait=TIMEOUT_SECONDS, round_timeout=TIMEOUT_SECONDS)
        submit(self.server, RunRequest(text, run, policy))

    def log(self, name: str) -> str:
        return (self.home / f"site-{name}.log").read_text(errors="replace")

    def training(self, name: str, stage: str, round: int) -> bool:
        """Whether a site has started this round of the run that was submitted last."""
        return f"{stage}, round {round}: training" in self.log(name)[self.log_sizes[name] :]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with ExitStack() as stack:
        yield Federation(tmp_path_factory.mktemp("federation"), stack)


def test_two_runs_at_once_whose_servers_are_killed_are_bit_identical_to_one_process(
    federation: Federation, tiny: str, tmp_path: Path
) -> None:
    texts = {name: recipe(tiny, name) for name in ("fedema", "fedmcc")}
    for name, text in texts.items():
        federation.submit(text, tmp_path / name)
    wait_until(lambda: rows(tmp_path / "fedmcc"))
    kill(federation.operator.flower_home, "flwr-serverapp")
    assert not (tmp_path / "fedmcc" / "scores.json").exists()  # it was killed in the middle
    for name in (name for name in texts if not (tmp_path / name / "scores.json").exists()):
        federation.submit(texts[name], tmp_path / name)
    for name, text in texts.items():
        expected = embedded(text, tmp_path / f"{name}-embedded")
        wait_until((tmp_path / name / "scores.json").exists)
        assert outcome(tmp_path / name) == expected


def test_a_site_killed_mid_round_drops_out_of_it_and_rejoins_under_its_name(
    federation: Federation, tiny: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    federation.submit(recipe(tiny, "fedema", rounds=3), run)
    wait_until(lambda: federation.training("b", "representation", 2))
    kill(federation.operator.site("b").flower_home, "")
    wait_until(lambda: len(rows(run)) == 2)
    federation.start("b")
    wait_until((run / "scores.json").exists)
    assert [row["participants"] for row in rows(run)] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert rows(run)[1]["reasons"] == {"1": "its connection was lost."}
    assert rows(run)[2]["waiting"] > 1


# Flower's simulation starts slowly: one simulation runs all recipes of a folder, nested in the requested run.
ALL = """
import os
from pathlib import Path
from flwr.serverapp import ServerApp
from fedmcc.deployment.server.coordinator import serve
from fedmcc.deployment.server.request import take_request

server_app = ServerApp()

@server_app.main()
def main(grid, context):
    request = take_request(Path(os.environ["FLWR_HOME"]), context.run_config)
    requested = request.run
    rounds = serve(grid, request)
    next(rounds)  # creates the run directory, in which the sites keep their states
    for recipe in set(requested.parent.glob("*.toml")) - {requested.parent / f"{requested.name}.toml"}:
        list(serve(grid, request._replace(recipe=recipe.read_text(), run=recipe.with_suffix(""))))
    list(rounds)
"""


def write_bundle_of_all(folder: Path, run_config: dict[str, Any]) -> None:
    write_bundle(folder, run_config)
    project = folder / "pyproject.toml"
    project.write_text(
        project.read_text().replace("fedmcc.deployment.server.app:server_app", "all:server_app")
    )
    (folder / "all.py").write_text(ALL)


def test_a_simulation_is_bit_identical_to_one_process(
    tiny: str, tmp_path: Path, fedmcc: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in METHODS:
        text = recipe(tiny, name).replace("reproducible = true", "reproducible = false")  # the default
        (tmp_path / f"{name}.toml").write_text(text)
    requested = "fedmcc"
    monkeypatch.setattr("fedmcc.deployment.simulation.write_bundle", write_bundle_of_all)
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 1}')  # one worker, since workers start slowly
    options = ("--engine", "flower-simulation", "--out", tmp_path / requested)
    result = fedmcc("run", tmp_path / f"{requested}.toml", *options)
    assert result.exit_code == 0, result.output
    for name in METHODS:
        expected = embedded((tmp_path / f"{name}.toml").read_text(), tmp_path / f"{name}-embedded")
        assert outcome(tmp_path / name) == expected, name
