"""Messages are on the wire what they were, to the byte, and those of before are understood."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmcc.deployment.flower.packets import unpack
from fedmcc.deployment.setup.create import create_federation
from fedmcc.deployment.setup.layout import FederationSpec
from fedmcc.deployment.site.app import IGNORED, client_app

FILE = json.loads(Path(__file__).with_name("wire.json").read_text())
GOLDEN, PACKETS = FILE["messages"], FILE["packets"]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_message_is_sent_as_it_was(wire: ModuleType, name: str) -> None:
    assert json.dumps(wire.written(wire.packed(name))) == json.dumps(GOLDEN[name])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_message_of_before_is_understood(wire: ModuleType, name: str) -> None:
    received = wire.unpacked(name, wire.read(GOLDEN[name]))
    assert type(received) is type(wire.MESSAGES[name])
    assert _plain(received) == _plain(wire.MESSAGES[name])


@pytest.mark.parametrize("name", PACKETS)
def test_a_packet_is_sent_as_it_was_and_one_of_before_is_understood(wire: ModuleType, name: str) -> None:
    assert wire.packet(name).hex() == PACKETS[name]
    sent = RecordDict({"packet": ConfigRecord({"content": bytes.fromhex(PACKETS[name])})})
    assert json.dumps(wire.written(unpack(sent))) == json.dumps(GOLDEN[name])


def test_no_kind_of_message_is_left_out(wire: ModuleType) -> None:
    packing = {name for name in vars(wire.records) if name.startswith("pack_")} - {"pack_state"}
    kinds = {type(message) for message in wire.MESSAGES.values()}
    assert wire.MESSAGES.keys() == GOLDEN.keys() == PACKETS.keys()
    assert len(kinds) == len(packing)


@pytest.mark.parametrize(
    ("kind", "name", "fact"),
    [
        ("query.hello", "greeting", "fingerprint"),
        ("query.refused", "text", ""),
        ("train", "order", "failure"),
    ],
)
def test_a_simulated_site_answers_a_server_of_before(
    wire: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, name: str, fact: str
) -> None:
    reply = _answer(
        wire.read(GOLDEN[name]), kind, {"partition-id": 0, "num-partitions": 3}, monkeypatch, tmp_path
    )
    assert not reply.has_error()
    assert fact in reply.content.get("facts", {"": "nothing to say"})


@pytest.mark.parametrize(
    ("kind", "name"), [("query.hello", "greeting"), ("query.refused", "text"), ("train", "order")]
)
def test_a_real_site_ignores_a_server_that_does_not_sign(
    wire: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, name: str
) -> None:
    spec = FederationSpec("127.0.0.1", 8000, 8001, ("site-a",))
    folder = create_federation(tmp_path / "federation", spec, 1).site("site-a").path
    node = {"client": "site-a", "state-dir": str(tmp_path / "state"), "folder": str(folder)}
    reply = _answer(wire.read(GOLDEN[name]), kind, node, monkeypatch, tmp_path)
    assert reply.content["facts"]["failure"] == IGNORED
    assert "signature" not in reply.content
    assert not (tmp_path / "state").exists()


def _answer(
    content: RecordDict, kind: str, node: dict[str, Any], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Message:
    for key in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, key, 1)
    run_config = {"sites": str(folder / "sites")}
    return client_app(Message(content, 1, kind), Context(1, 1, node, RecordDict(), run_config))


def _plain(message: Any) -> Any:
    """A message as what `==` compares: names, types, shapes and numbers."""
    if isinstance(message, torch.Tensor):
        return message.dtype, tuple(message.shape), message.tolist()
    if isinstance(message, dict):
        return {name: _plain(value) for name, value in message.items()}
    if hasattr(message, "__dataclass_fields__"):
        return _plain(vars(message))
    return tuple(map(_plain, message)) if isinstance(message, tuple) else message
