"""A federation on this machine with the commands of operators and sites: processes, TLS, keys and nginx.

At first two of three sites connect; while the server waits for the third, the tests try what must be refused.
"""

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest
import tomli_w
import torch
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from fedmcc import config
from fedmcc.deployment.flower.connectivity import UnreachableError, check_connection
from fedmcc.deployment.flower.processes import (
    environment,
    free_port,
    processes_of,
    running,
    wait_until,
)
from fedmcc.deployment.flower.records import pack_greeting, pack_task, pack_text
from fedmcc.deployment.messages import Greeting, SiteTask
from fedmcc.deployment.setup.certificates import (
    certify_server,
    create_authority,
    create_site_key,
    load_authority,
)
from fedmcc.deployment.setup.create import create_federation, expiry_dates, write_nginx_config
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder, SiteFolder
from fedmcc.deployment.setup.nginx import command_line
from fedmcc.federation.secure_aggregation.quantise import STEP
from fedmcc.messages import Task
from fedmcc.runs import experiment
from fedmcc.runs.directory import Run
from fedmcc.storage.safetensor_files import load_state

pytestmark = pytest.mark.timeout(2400)  # every message starts a process, which is slow on a busy machine

PROGRAM = str(Path(sys.executable).with_name("fedmcc"))
TIMEOUT_SECONDS = 1200.0
STAGES = ("representation", "representation", "whitening", "prototypes", "clusters")
RECIPE = """
clusters = 10
threads = 1
device = "cpu"
[data]
name = "folder"
size = 8
[views]
preset = "digits"
size = 8
[encoder]
width = 4
[method]
name = "fedmcc"
rounds = 2
hidden = 16
[clustering]
name = "informative"
prototypes = 2.0
[training]
batch_size = 32
"""


@dataclass
class Federation:
    """A federation with its processes."""

    operator: OperatorFolder
    folder: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        return Run(self.operator.runs / "recipe-001")

    def start(self, name: str, *command: object) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [PROGRAM, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "FEDMCC_DATA": str(self.folder / "cache")},
            )
        self.processes[name] = process
        return process

    def start_server(self, recipe: str = "recipe.toml") -> None:
        self.start("server", "server", "start", self.operator.path, self.folder / recipe)

    def start_site(self, name: str) -> None:
        data = ("--data", self.folder / "images" / name, "--encoder", self.encoder(name))
        self.start(name, "site", "start", self.operator.site(name).path, *data)

    def encoder(self, name: str) -> Path:
        """The place of the pretrained encoder at a site."""
        return self.folder / "encoders" / name / f"{name}.onnx"

    def output(self, name: str) -> str:
        """The output of a process so far."""
        return (self.folder / f"{name}.out").read_text()


@pytest.fixture(scope="module")
def federation(
    nginx: str, tmp_path_factory: pytest.TempPathFactory, owners: Path, encoder_files: ModuleType
) -> Iterator[Federation]:
    """The server and two of three sites, connected."""
    folder = tmp_path_factory.mktemp("federation")
    shutil.copytree(owners, folder / "images")
    (folder / "recipe.toml").write_text(RECIPE)
    operator = create_federation(
        folder / "fed", FederationSpec("127.0.0.1", free_port(), free_port(), ("a", "b", "c")), 60
    )
    federation = Federation(operator, folder)
    stored = {"mean": encoder_files.MEAN, "std": encoder_files.STD, "size": 8, "licence": "any " * 100_000}
    for name, seed in (("a", 0), ("b", 0), ("c", 1), ("server", 0)):  # that of c is another one
        federation.encoder(name).parent.mkdir(parents=True)
        encoder_files.write_onnx(federation.encoder(name), seed, metadata=stored)
    federation.start_server()
    for name in ("a", "b"):
        federation.start_site(name)
    assert wait_until(lambda: all("Connected" in federation.output(name) for name in "ab"), TIMEOUT_SECONDS)
    yield federation
    for process in federation.processes.values():
        process.terminate()
    for process in federation.processes.values():
        process.wait(60)


def copied(federation: Federation, name: str) -> SiteFolder:
    """A copy of a site's folder, to be changed."""
    return SiteFolder(Path(shutil.copytree(federation.operator.site("c").path, federation.folder / name)))


def refused(federation: Federation, site: SiteFolder) -> str:
    """The output of a site that is refused."""
    data = federation.folder / "images" / "c"
    process = federation.start(site.path.name, "site", "start", site.path, "--data", data)
    assert process.wait(TIMEOUT_SECONDS) == 2
    return federation.output(site.path.name)


def test_a_site_with_an_unregistered_key_is_refused(federation: Federation) -> None:
    site = copied(federation, "unregistered")
    site.key.write_bytes(create_site_key().private)
    assert "does not accept the key of this site: ask the operator" in refused(federation, site)


def test_a_site_of_another_authority_refuses_the_server(federation: Federation) -> None:
    site = copied(federation, "other-authority")
    site.authority_certificate.write_bytes(create_authority().certificate_pem)
    assert "was not issued by the authority that this site trusts: nothing was sent" in refused(
        federation, site
    )


@pytest.fixture
def expired(federation: Federation, nginx: str, tmp_path: Path) -> Iterator[OperatorFolder]:
    """The proxy of another federation, with a certificate that expired yesterday."""
    spec = replace(federation.operator.read_spec(), port=free_port(), control_port=free_port())
    operator = create_federation(tmp_path / "expired", spec, 30)
    authority = load_authority(operator.authority_key, operator.authority_certificate)
    old = certify_server(authority, spec.host, 30, datetime.now(UTC) - timedelta(days=31))
    operator.key.write_bytes(old.key_pem)
    operator.certificate.write_bytes(old.certificate_pem)
    write_nginx_config(operator, spec)
    for folder in (operator.flower_home, operator.logs, operator.server / "proxy"):
        folder.mkdir()
    with running(command_line(nginx, operator), operator.flower_home, operator.logs / "nginx.log"):
        assert wait_until((operator.server / "nginx.pid").exists, TIMEOUT_SECONDS)
        yield operator


def test_an_expired_certificate_is_refused_by_site_and_server(
    federation: Federation, expired: OperatorFolder
) -> None:
    end = expiry_dates(expired)["the server's certificate"]
    assert f"has expired on {end:%Y-%m-%d}: nothing was sent" in refused(federation, expired.site("c"))
    server = federation.start(
        "old-server", "server", "start", expired.path, federation.folder / "recipe.toml"
    )
    assert server.wait(TIMEOUT_SECONDS) == 2
    assert f"fedmcc federation renew {expired.path}" in federation.output("old-server")


def posted(connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
    """The status and the body of the response to a request."""
    with closing(connection):
        connection.request("POST", path, b"")
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_connection_without_tls_is_refused(federation: Federation) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", federation.operator.read_spec().port, timeout=60)
    status, body = posted(connection, "/v1/fleet/activate-node")
    assert status == 400
    assert b"plain HTTP request was sent to HTTPS port" in body


def flwr(federation: Federation, port: int, *command: object) -> "subprocess.CompletedProcess[str]":
    """Run Flower's command line with the certificates of nginx, which every site has, or of Flower itself."""
    home = federation.folder / f"flwr-{port}"
    home.mkdir(exist_ok=True)
    operator = federation.operator
    behind = port == operator.read_spec().control_port
    certificate = (operator.loopback_tls if behind else operator.public_tls).authority
    link = f'[superlink.fed]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{certificate}"\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "fed"\n{link}')
    program = str(Path(sys.executable).with_name("flwr"))
    return subprocess.run(
        [program, *map(str, command)],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_through_the_proxy_a_site_can_neither_list_nor_start_runs(federation: Federation) -> None:
    port = federation.operator.read_spec().port
    bundle = federation.operator.server / "bundle"
    assert wait_until((bundle / "pyproject.toml").exists, TIMEOUT_SECONDS)
    for command in (("list", "fed"), ("run", bundle, "fed")):
        tried = flwr(federation, port, *command)
        assert tried.returncode != 0
        assert "403" in tried.stdout + tried.stderr
    refused = (federation.operator.logs / "refused.log").read_text()
    assert "/v1/control/list-runs" in refused
    assert "/v1/control/start-run" in refused


def test_no_spelling_of_a_path_bypasses_the_proxy(federation: Federation) -> None:
    context = ssl.create_default_context(cafile=str(federation.operator.authority_certificate))
    port = federation.operator.read_spec().port
    spellings = ("/v1/control/list-runs", "//v1/control/list-runs", "/v1/fleet/../control/list-runs")
    encoded = (
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/runtime/get-nodes",
    )
    for path in (*spellings, *encoded, "/health", "/"):
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        assert posted(connection, path) == (403, b"Only requests from sites are allowed here.\n"), path


def forged_messages() -> dict[str, RecordDict]:
    """What a site could want another site to believe, by the type of the message."""
    recipe = config.dump(config.parse({**tomllib.loads(RECIPE), "partition": {"clients": 3}}))
    task = SiteTask("evil", recipe, "", None, Task(0, "representation", 1, {}))
    return {
        "query.hello": pack_greeting(Greeting(recipe, ("done",))),
        "query.refused": pack_text("Send your images to us."),
        "train": pack_task(task),
    }


def test_a_site_cannot_speak_to_another_site_in_the_name_of_the_server(
    federation: Federation, fleet: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    operator, victim = federation.operator, federation.operator.site("b")
    log = operator.logs / "run.log"  # Flower accepts messages only while the server's process runs
    assert wait_until(lambda: log.exists() and "Site b joined" in log.read_text(), TIMEOUT_SECONDS)
    nodes = json.loads((operator.server / "nodes.json").read_text())
    run = int(json.loads((operator.server / "current.json").read_text())["number"])
    kept = victim.state / "done" / "joint-000001.safetensors"
    kept.parent.mkdir(parents=True)
    kept.touch()
    own = (operator.authority_certificate, operator.site("a").key, nodes["a"])
    attacker = fleet.connect(operator.read_spec().address, *own)
    with closing(attacker.client):
        for kind, content in forged_messages().items():
            lie = {"run_id": run, "src_node_id": SUPERLINK_NODE_ID, "created_at": time.time()}
            attacker.push(fleet.forged(Message(content, nodes["b"], kind, ttl=3600.0), **lie))
    assert wait_until(lambda: federation.output("b").count("Ignored a message") == 3, TIMEOUT_SECONDS)
    for sentence in ("Send your images", "rejected this site", "training on", "Deleted"):
        assert sentence not in federation.output("b")
    assert kept.exists()


def test_the_operator_can_list_the_run_and_what_sites_can_read_names_no_site_no_node_and_no_path(
    federation: Federation,
) -> None:
    operator = federation.operator
    listed = flwr(federation, operator.read_spec().control_port, "list", "fed", "--format", "json")
    assert (listed.returncode, listed.stdout.count('"run-id"')) == (0, 1)
    bundle = (operator.server / "bundle" / "pyproject.toml").read_text()
    node = str(json.loads((operator.server / "nodes.json").read_text())["b"])
    assert tomllib.loads(bundle)["tool"]["flwr"]["app"]["config"].keys() == {"protocol", "request"}
    for secret in (node, str(operator.path), str(federation.folder)):
        assert secret not in listed.stdout + bundle


def test_a_killed_server_resumes_and_its_sites_reconnect(federation: Federation) -> None:
    federation.start_site("c")
    assert wait_until(lambda: len(federation.run.rows()) >= 1, TIMEOUT_SECONDS), federation.output("server")
    federation.processes["server"].kill()
    federation.processes["server"].wait()
    federation.start_server()
    assert federation.processes["server"].wait(TIMEOUT_SECONDS) == 0, federation.output("server")
    rows = federation.run.rows()
    assert tuple(row["stage"] for row in rows) == STAGES
    assert all(row["participants"] == [0, 1, 2] for row in rows)
    assert federation.run.finished


def test_status_counts_rounds_and_bytes_of_each_site(federation: Federation) -> None:
    federation.start("status", "federation", "status", federation.operator.path).wait(TIMEOUT_SECONDS)
    shown = federation.output("status")
    assert "not running" in shown
    assert "is complete: clusters round 1" in shown
    lines = [line for line in shown.splitlines() if line[2:3] in ("a", "b", "c")]
    assert [line.split("│")[4].strip() for line in lines] == [str(len(STAGES))] * 3


def test_the_audit_books_of_server_and_sites_agree(federation: Federation) -> None:
    audit = federation.start("audit", "federation", "audit", federation.operator.path)
    assert audit.wait(TIMEOUT_SECONDS) == 0, federation.output("audit")
    assert "All lines are genuine, and the books agree." in federation.output("audit")
    lines = [json.loads(line) for line in federation.operator.audit_book.read_text().splitlines()]
    accepted = [line["accepted"] for line in lines if line["event"] == "round"]
    assert accepted == [["a", "b", "c"]] * len(STAGES)


def test_logs_name_sites_and_rounds_but_no_image_files(federation: Federation) -> None:
    logs = [*federation.operator.logs.glob("*"), *federation.operator.path.glob("sites/*/logs/*")]
    text = "".join(path.read_text() for path in logs)
    assert "clusters 1/1: a, b, c" in text
    assert "representation, round 1: training on 100 images." in text
    assert "patient-" not in text


@pytest.fixture
def pretrained(federation: Federation) -> Path:
    """A recipe for the encoder in the server's place, which scores on the images of all sites."""
    path, root = federation.folder / "pretrained.toml", federation.folder / "images"
    settings = [f"data.root={root}", "data.labels=false", f"encoder.path={federation.encoder('server')}"]
    name = {"encoder": {"name": "onnx"}, "data": {"name": "folder"}}
    name["clustering"] = {"name": "neighbours", "rounds": 2}
    table = {"clusters": 4, "threads": 1, "device": "cpu", "evaluation": {"at_server": True}, **name}
    path.write_text(config.dump(config.parse(config.apply_settings(table, settings))))
    return path


def test_a_site_with_another_encoder_is_refused_in_a_sentence(
    federation: Federation, pretrained: Path
) -> None:
    log = federation.operator.logs / "run.log"
    federation.start_server(pretrained.name)
    own = sha256(federation.encoder("server").read_bytes()).hexdigest()
    refusal = f"Site c cannot join: The site does not have the encoder with the SHA-256 {own}"
    refused = wait_until(lambda: log.exists() and refusal in log.read_text(), TIMEOUT_SECONDS)
    assert refused, federation.output("server")
    federation.processes["server"].terminate()
    federation.processes["server"].wait(60)


def test_a_pretrained_encoder_in_the_place_of_each_site_does_not_travel_and_gives_the_simulations_clusters(
    federation: Federation, pretrained: Path, tmp_path: Path
) -> None:
    federation.encoder("c").write_bytes(federation.encoder("server").read_bytes())
    federation.start_server(pretrained.name)
    assert federation.processes["server"].wait(TIMEOUT_SECONDS) == 0, federation.output("server")
    run = Run(federation.operator.runs / "pretrained-001")
    simulated = config.load(pretrained, ["data.groups=true", "partition.name=by_group"])
    expected = experiment.run(simulated, tmp_path / "simulated")
    assert run.assignments_file.read_text() == expected.assignments_file.read_text()
    sent, simulated_bytes = (
        [row["bytes_down"] + row["bytes_up"] for row in r.rows()] for r in (run, expected)
    )
    assert sent == simulated_bytes
    assert 0 < sum(sent) < federation.encoder("server").stat().st_size


def test_with_secure_aggregation_and_a_drop_out_the_model_is_the_plain_average(
    federation: Federation,
) -> None:
    """Site c shares its secrets and then refuses to train, since one of its images is gone."""
    operator, recipe = federation.operator, federation.folder / "secure.toml"
    table = {**tomllib.loads(RECIPE), "federation": {"secure_aggregation": True, "minimum": 2}}
    table["method"] = {"name": "fedsimclr", "rounds": 1, "epochs": 1, "hidden": 16, "projections": 8}
    table["clustering"] = {"name": "none"}
    recipe.write_text(tomli_w.dumps(table))
    book = operator.site("c").audit_book
    lines = book.read_text().count("replied")
    server = federation.start("secure", "server", "start", operator.path, recipe)
    assert wait_until(lambda: book.read_text().count("replied") > lines, TIMEOUT_SECONDS)  # its hello
    next((federation.folder / "images" / "c").rglob("*.png")).unlink()
    assert server.wait(TIMEOUT_SECONDS) == 0, federation.output("secure")
    run = Run(operator.runs / "secure-001")
    assert run.rows()[0]["participants"] == [0, 1]
    assert "another number of images" in run.rows()[0]["reasons"]["2"]
    assert_plain_average(operator, run, ("a", "b"))
    assert not list(operator.path.glob("sites/*/flower/apps"))  # sites run no program of the server


def assert_plain_average(operator: OperatorFolder, run: Run, sites: tuple[str, ...]) -> None:
    """The model is the mean of the weights that the sites have on their disks, weighted by their images."""
    number = run.read_json("sites.json")["id"]
    states = []
    for name in sites:
        (file,) = (operator.site(name).state / number).glob("*-000001.safetensors")
        states.append({key.removeprefix("net."): value for key, value in load_state(file).items()})
    model = load_state(run.model_file)
    shared = [key for key, value in model.items() if key.startswith("online.") and value.is_floating_point()]
    assert shared
    for key in shared:
        mean = torch.stack([state[key].double() for state in states]).mean(dim=0)  # 100 images each
        assert (model[key].double() - mean).abs().max() <= 3 * STEP / 2 * 3 / 2 + 1e-6, key
    assert any((states[0][key] - states[1][key]).abs().max() > 1e-3 for key in shared)


def test_no_process_is_left_after_all_were_stopped(federation: Federation) -> None:
    sites = [federation.processes[name] for name in ("a", "b", "c")]
    assert [site.poll() for site in sites] == [None] * 3  # they wait for the next run
    for site in sites:
        site.terminate()
    assert [site.wait(60) for site in sites] == [130] * 3
    homes = [
        federation.operator.flower_home,
        *(federation.operator.site(name).flower_home for name in ("a", "b", "c")),
    ]
    assert [processes_of(home) for home in homes] == [[], [], [], []]


def test_stop_ends_a_server_and_all_its_processes(federation: Federation) -> None:
    spec = FederationSpec("127.0.0.1", free_port(), free_port(), ("a",))
    other = Federation(create_federation(federation.folder / "other", spec, 60), federation.folder)
    command = ("server", "start", other.operator.path, federation.folder / "recipe.toml")
    server = other.start("stopped", *command)
    assert wait_until(lambda: "waiting for a" in other.output("stopped"), TIMEOUT_SECONDS)
    assert other.start("second", *command).wait(TIMEOUT_SECONDS) == 2
    assert "is running already: stop it first" in other.output("second")
    assert other.start("stop", "federation", "stop", other.operator.path).wait(TIMEOUT_SECONDS) == 0
    assert server.wait(60) == 130
    assert processes_of(other.operator.flower_home) == []
    with pytest.raises(UnreachableError):
        check_connection(spec.address, other.operator.authority_certificate)
