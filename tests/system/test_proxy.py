"""A server without sites behind its nginx: what outsiders cost it, and what happens when its programs die."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supernode.fleet_http_connection import http_request_response

from fedmcc.deployment.flower import pid_files
from fedmcc.deployment.flower.logs import MAX_LOG_BYTES
from fedmcc.deployment.flower.processes import check_port_free, free_port, processes_of, wait_until
from fedmcc.deployment.setup.certificates import create_site_key
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.deployment.setup.nginx import MAX_PIECE_BYTES, MAX_SITE_CONNECTIONS, public_key_header
from fedmcc.errors import InputError

pytestmark = pytest.mark.timeout(1200)

PROGRAM = str(Path(sys.executable).with_name("fedmcc"))
TIMEOUT_SECONDS = 600.0
MAX_MEMORY = 300e6  # bytes of the SuperLink under attack
RECIPE = 'clusters = 10\n[data]\nname = "folder"\nsize = 8\n[encoder]\nwidth = 4\n[method]\nname = "mcc"\n'


@dataclass
class Server:
    """A server that waits for its sites."""

    operator: OperatorFolder
    screen: Path
    process: "subprocess.Popen[bytes]"

    def shows(self, text: str, times: int = 1) -> bool:
        """Whether the text appears on the screen in time."""
        return wait_until(lambda: self.screen.read_text().count(text) >= times, TIMEOUT_SECONDS)

    @property
    def nginx(self) -> int:
        """The id of nginx's master process."""
        return int((self.operator.server / "nginx.pid").read_text())

    def answers(self) -> bool:
        """Whether nginx accepts connections and refuses a request without a key."""
        try:
            return posted(self.operator, {}, b"") in (401, 429)
        except OSError:
            return False

    def process_of(self, name: str) -> int:
        """The id of the oldest process with this text in its command line."""
        named = [pid for pid in processes_of(self.operator.flower_home) if name in _read(pid, "cmdline")]
        return min(named)

    @property
    def memory(self) -> int:
        """The largest number of bytes that the SuperLink occupied so far."""
        status = _read(self.process_of("flower-superlink"), "status")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def server(nginx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "recipe.toml").write_text(RECIPE)
    spec = FederationSpec("127.0.0.1", free_port(), free_port(), ("a", "b"))
    operator = create_federation(folder / "fed", spec, 60)
    with (folder / "screen").open("ab") as screen:
        argv = [PROGRAM, "server", "start", str(operator.path), str(folder / "recipe.toml")]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=screen, stderr=subprocess.STDOUT)
    server = Server(operator, folder / "screen", process)
    assert server.shows("waiting for a, b"), server.screen.read_text()
    yield server
    process.terminate()
    process.wait(60)


def posted(operator: OperatorFolder, headers: Mapping[str, str], body: bytes) -> int:
    """The status of the response to a piece of an update."""
    context = ssl.create_default_context(cafile=str(operator.authority_certificate))
    port = operator.read_spec().port
    with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)) as connection:
        connection.request("POST", "/v1/fleet/push-object", body, headers)
        return connection.getresponse().status


def posted_at_once(operator: OperatorFolder, headers: Mapping[str, str], size: int, times: int) -> list[int]:
    """The statuses of several requests at the same time, in order; 0 for a connection that was closed."""
    body, statuses = PushObjectRequest(object_content=bytes(size)).SerializeToString(), []

    def post() -> None:
        try:
            statuses.append(posted(operator, headers, body))
        except OSError:
            statuses.append(0)

    threads = [threading.Thread(target=post) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(statuses)


def headers_of(public_key: Path) -> dict[str, str]:
    """Headers with a public key and a signature that is not valid."""
    return {
        "content-type": "application/protobuf",
        "flwr-public-key": public_key_header(public_key),
        "flwr-timestamp": "2026-01-01T00:00:00+00:00",
        "flwr-signature": "AAAA",
    }


@pytest.fixture
def unknown(tmp_path: Path) -> dict[str, str]:
    """Headers with a key that is not registered."""
    (tmp_path / "unknown.pub").write_bytes(create_site_key().public)
    return headers_of(tmp_path / "unknown.pub")


def test_large_bodies_of_outsiders_do_not_reach_flower(server: Server, unknown: dict[str, str]) -> None:
    without_key = {"content-type": "application/protobuf"}
    for headers in (without_key, unknown, headers_of(server.operator.public_key("a"))):
        assert set(posted_at_once(server.operator, headers, 60_000_000, 10)) <= {0, 413}
    assert server.memory < MAX_MEMORY


def test_pieces_with_an_unregistered_key_are_refused_before_flower(
    server: Server, unknown: dict[str, str]
) -> None:
    before = (server.operator.logs / "flower.log").read_text()
    assert set(posted_at_once(server.operator, unknown, 5_000_000, 10)) <= {0, 401, 429}
    assert set(posted_at_once(server.operator, unknown, 1000, 200)) <= {0, 401, 429}
    assert "push-object" not in (server.operator.logs / "flower.log").read_text().removeprefix(before)
    assert server.memory < MAX_MEMORY
    assert '"POST /v1/fleet/push-object" 401' in (server.operator.logs / "refused.log").read_text()


def test_one_key_is_bounded_by_its_connections(server: Server) -> None:
    headers = headers_of(server.operator.public_key("a"))
    size = MAX_PIECE_BYTES - 100
    statuses = posted_at_once(server.operator, headers, size, 4 * MAX_SITE_CONNECTIONS)
    assert set(statuses) <= {401, 503}  # 401 of Flower: the signature is not valid
    assert server.memory < MAX_MEMORY + 3 * MAX_SITE_CONNECTIONS * MAX_PIECE_BYTES


def connected_node(operator: OperatorFolder, site: str) -> int:
    """The node id that Flower gives to a site that connects with its key."""
    key = load_ssh_private_key(operator.site(site).key.read_bytes(), None)
    address, trusted = operator.read_spec().address, operator.authority_certificate.read_bytes()
    with http_request_response(address, False, trusted, (key, key.public_key())) as connection:
        return connection[0]


def registered_node(operator: OperatorFolder, site: str) -> int:
    return json.loads((operator.server / "nodes.json").read_text())[site]


def test_a_registered_site_can_connect(server: Server) -> None:
    assert connected_node(server.operator, "b") == registered_node(server.operator, "b")


def test_the_log_of_refused_requests_is_bounded(server: Server) -> None:
    log = server.operator.logs / "refused.log"
    with log.open("a") as file:
        file.write("x" * (MAX_LOG_BYTES + 1))
    assert wait_until(log.with_suffix(".old.log").exists, TIMEOUT_SECONDS)
    assert wait_until(lambda: log.stat().st_size < MAX_LOG_BYTES, TIMEOUT_SECONDS)
    assert wait_until(lambda: posted(server.operator, {}, b"") == 401, TIMEOUT_SECONDS)
    assert wait_until(lambda: "push-object" in log.read_text(), TIMEOUT_SECONDS)


def test_a_renewed_certificate_is_used_at_once(server: Server) -> None:
    port = server.operator.read_spec().port
    before = ssl.get_server_certificate(("127.0.0.1", port))
    renewed = subprocess.run(
        [PROGRAM, "federation", "renew", str(server.operator.path)], capture_output=True, text=True
    )
    assert "The running server uses the new certificate." in renewed.stdout + renewed.stderr
    own = server.operator.certificate.read_text()
    assert wait_until(lambda: ssl.get_server_certificate(("127.0.0.1", port)) == own, TIMEOUT_SECONDS)
    assert own != before
    assert connected_node(server.operator, "b") == registered_node(server.operator, "b")


def test_a_killed_nginx_is_replaced_with_its_workers(server: Server) -> None:
    home, master = server.operator.flower_home, server.nginx
    workers = set(pid_files.session_of(home, master)) - {master}
    assert workers
    os.kill(master, signal.SIGKILL)  # its workers keep the port
    assert server.shows("nginx ended: starting it again.")
    assert wait_until(lambda: server.nginx != master and server.answers(), TIMEOUT_SECONDS)
    assert [worker for worker in workers if pid_files.read_facts(worker)] == []


def test_a_killed_flower_is_replaced_and_the_run_submitted_again(server: Server) -> None:
    current = server.operator.server / "current.json"
    before = current.read_text()
    os.kill(server.process_of("flower-superlink"), signal.SIGKILL)
    assert server.shows("Flower's server ended: starting it again; the run continues from its last round.")
    assert wait_until(lambda: current.read_text() != before, TIMEOUT_SECONDS), server.screen.read_text()
    assert connected_node(server.operator, "a") == registered_node(server.operator, "a")
    assert server.process.poll() is None


def test_stop_ends_workers_whose_master_and_server_were_killed(server: Server) -> None:
    spec = server.operator.read_spec()
    server.process.send_signal(signal.SIGSTOP)  # so that it does not replace nginx
    os.kill(server.nginx, signal.SIGKILL)
    server.process.kill()
    server.process.wait()
    with pytest.raises(InputError, match="in use"):
        check_port_free(spec.port)
    argv = [PROGRAM, "federation", "stop", str(server.operator.path)]
    stopped = subprocess.run(argv, capture_output=True, text=True)
    assert "Stopped" in stopped.stdout + stopped.stderr
    check_port_free(spec.port)
    assert processes_of(server.operator.flower_home) == []
