"""What nginx passes: every request that Flower's client sends for us, and hardly more."""

import subprocess
from pathlib import Path

import httpx
import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import (
    FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS,
    FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmcc.deployment.flower.records import Reply, pack_reply
from fedmcc.deployment.setup.create import create_federation, write_nginx_config
from fedmcc.deployment.setup.layout import FederationSpec, OperatorFolder
from fedmcc.deployment.setup.nginx import (
    MAX_ANNOUNCEMENT_BYTES,
    MAX_PIECE_BYTES,
    MAX_REQUEST_BYTES,
    MAX_SITE_CONNECTIONS,
    REQUESTS,
    command_line,
    public_key_header,
    render_configuration,
)
from fedmcc.messages import Update

HASH = "0" * 64  # the form of Flower's ids of objects
NODE = Node(node_id=2**63)


def test_the_header_of_a_key_is_what_flowers_client_sends(operator: OperatorFolder) -> None:
    key = load_ssh_private_key(operator.site("north").key.read_bytes(), None)
    request = httpx.Request("POST", "https://localhost/v1/fleet/pull-messages")
    context = ProtobufRequestContext("pull", NODE, request)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda sent: httpx.Response(200))
    header = public_key_header(operator.public_key("north"))
    assert request.headers["flwr-public-key"] == header
    assert f'"{header}" "north";' in render_configuration(operator, operator.read_spec())


def test_the_largest_piece_of_an_update_is_just_below_the_limit() -> None:
    weights = {f"layer.{number}": torch.zeros(3_000_000) for number in range(3)}
    records = pack_reply(Reply(Update(0, "joint", 1, 10, 1.0, weights, {}), 1.0))
    sizes = [
        PushObjectRequest(
            node=NODE, run_id=2**63, object_id=name, object_content=piece.deflate(), session_id=HASH
        ).ByteSize()
        for name, piece in get_all_nested_objects(records).items()
    ]
    assert 0.9 * MAX_PIECE_BYTES < max(sizes) < MAX_PIECE_BYTES


def test_an_update_of_ten_gigabytes_can_be_announced() -> None:
    pieces = [ObjectTree(object_id=HASH) for _ in range(10 * 2**30 // (5 * 2**20))]
    tree = ObjectTree(object_id=HASH, children=pieces)
    request = PushMessagesRequest(node=NODE, message_object_trees=[tree])
    assert MAX_ANNOUNCEMENT_BYTES / 10 < request.ByteSize() < MAX_ANNOUNCEMENT_BYTES


def test_a_public_key_fits_into_a_small_request(operator: OperatorFolder) -> None:
    key = load_ssh_private_key(operator.site("north").key.read_bytes(), None)
    request = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30)
    assert request.ByteSize() < MAX_REQUEST_BYTES


def test_all_requests_of_registered_sites_pass_and_no_others() -> None:
    flower = {path.rpartition("/")[2] for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert {name for names in REQUESTS for name in names} == flower - {"register-node", "unregister-node"}


def test_a_site_has_enough_connections_for_flowers_client() -> None:
    transfers = FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS + FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES
    assert transfers + 2 <= MAX_SITE_CONNECTIONS  # and a heartbeat, and a request for messages


def test_nginx_accepts_the_keys_of_three_hundred_sites(nginx: str, tmp_path: Path) -> None:
    names = tuple(f"site-{number}" for number in range(300))
    operator = create_federation(tmp_path / "many", FederationSpec("127.0.0.1", 8000, 8001, names), 1)
    operator.logs.mkdir()
    (operator.server / "proxy").mkdir()
    write_nginx_config(operator, operator.read_spec())
    tested = subprocess.run([*command_line(nginx, operator), "-t"], capture_output=True, text=True)
    assert (tested.returncode, "warn" in tested.stderr) == (0, False), tested.stderr
