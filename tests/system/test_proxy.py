"""A server without sites behind its nginx: what outsiders cost it, and what happens when its programs die."""

import http.client
import json
import os
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

from fedmcc.deployment.flower.processes import free_port, processes_of, wait_until
from fedmcc.deployment.setup.certificates import create_site_key
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.deployment.setup.nginx import MAX_PIECE_BYTES, MAX_SITE_CONNECTIONS, find_nginx, public_key_header

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if find_nginx() is None:
        message = "nginx is not installed"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
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


def test_a_registered_site_can_connect(server: Server) -> None:
    key = load_ssh_private_key(server.operator.site("b").key.read_bytes(), None)
    address, trusted = server.operator.read_spec().address, server.operator.authority_certificate
    with http_request_response(address, False, trusted.read_bytes(), (key, key.public_key())) as connection:
        assert connection[0] == json.loads((server.operator.server / "nodes.json").read_text())["b"]
