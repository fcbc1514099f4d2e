"""The app of a site: which site a Flower node is, and its replies to messages that it cannot answer."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from fedmcc import config
from fedmcc.deployment.flower.records import pack_greeting, pack_task, pack_text, unpack_reply
from fedmcc.deployment.flower.signatures import Order, sign_order, stage_and_round
from fedmcc.deployment.messages import Greeting, SiteTask
from fedmcc.deployment.setup.certificates import certify_server, load_authority, load_server, load_site_key
from fedmcc.deployment.setup.layout import SiteFolder
from fedmcc.deployment.site.app import IGNORED, client_app, read_identity, read_site
from fedmcc.deployment.site.identity import SiteIdentity
from fedmcc.deployment.site.worker import Shard, SiteWorker
from fedmcc.errors import InputError
from fedmcc.messages import Task

pytestmark = pytest.mark.slow  # takes seconds


def test_an_expired_task_is_refused_and_keeps_the_state(three):
    federation = three()
    next(federation.serve())
    message = next(m for m in federation.grid.sent if m.metadata.message_type == "train")
    number = message.metadata.dst_node_id
    node = federation.grid.nodes[number]
    (kept,) = Path(node["state-dir"]).rglob("*.safetensors")
    kept.rename(kept.with_stem("representation-000009"))  # of a later task
    _sign(federation.operator, message, nonce="0" * 32, expires=round(1000 * time.time()) - 1)
    reply = client_app(message, Context(1, number, node, RecordDict(), {}))
    assert unpack_reply(reply.content, client=0).reason == "The task expired before it was started."
    assert "signature" in reply.content  # the server believes it
    assert [path.stem for path in kept.parent.glob("*.safetensors")] == ["representation-000009"]


def test_a_task_with_other_options_than_the_greeting_is_refused(three):
    federation = three()
    next(federation.serve())
    message = next(m for m in federation.grid.sent if m.metadata.message_type == "train")
    facts, number = message.content["facts"], message.metadata.dst_node_id
    facts["config"] = facts["config"].replace("epochs = 1", "epochs = 1000000")
    _sign(federation.operator, message, nonce="0" * 32)
    reply = client_app(message, Context(1, number, federation.grid.nodes[number], RecordDict(), {}))
    reason = unpack_reply(reply.content, client=0).reason
    assert reason == "The task differs from the recipe of the run in method.epochs."


def _sign(operator, message, **changes):
    """Sign a changed message with the server's key."""
    facts = message.content["signature"]
    order = Order(*(facts[key] for key in Order._fields))._replace(**changes)
    sign_order(message.content, order, load_server(operator.key, operator.certificate), {})


def _forged(kind, operator, signer):
    """A message that asks for something, with the name of the server and without its key."""
    recipe = config.dump(config.parse({"clusters": 2, "data": {"name": "synthetic", "limit": 4}}))
    task = Task(0, "joint", 1, {})
    content = {
        "query.hello": lambda: pack_greeting(Greeting(recipe, ("done",))),
        "query.refused": lambda: pack_text("Send your images to us."),
        "train": lambda: pack_task(SiteTask("evil", recipe, "", None, task)),
    }[kind]()
    now = round(1000 * time.time())
    order = Order(kind, "evil", "north", "7", *stage_and_round(content), "0" * 32, now, now + 60_000)
    if signer == "another site":
        south = load_site_key(operator.site("south").key)
        sign_order(content, order, load_server(operator.key, operator.certificate)._replace(key=south), {})
    elif signer == "the server for another site":
        server = load_server(operator.key, operator.certificate)
        sign_order(content, order._replace(site="south", node="8"), server, {})
    return Message(content, 7, kind)


@pytest.mark.parametrize("signer", ["nobody", "another site", "the server for another site"])
@pytest.mark.parametrize("kind", ["query.hello", "query.refused", "train"])
def test_a_forged_message_is_neither_shown_nor_obeyed(kind, signer, operator, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(SiteWorker, "hello", None)  # neither is called
    monkeypatch.setattr(SiteWorker, "answer", None)
    state = tmp_path / "state" / "done" / "joint-000001.safetensors"
    state.parent.mkdir(parents=True)
    state.touch()
    node = {
        "client": "north",
        "state-dir": str(tmp_path / "state"),
        "folder": str(operator.site("north").path),
    }
    reply = client_app(_forged(kind, operator, signer), Context(1, 7, node, RecordDict(), {}))
    assert reply.content["facts"]["failure"] == IGNORED
    assert list(reply.content) == ["facts"]  # and nothing that is signed
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["done"]
    assert state.exists()
    assert "Ignored a message" in caplog.text
    assert "Send your images" not in caplog.text


def test_an_expired_certificate_is_named_at_the_site_and_to_the_server(operator, tmp_path, caplog):
    authority = load_authority(operator.authority_key, operator.authority_certificate)
    old = certify_server(authority, "127.0.0.1", 30, datetime.now(UTC) - timedelta(days=31))
    message = _forged("query.refused", operator, "nobody")
    now = round(1000 * time.time())
    order = Order("query.refused", "run", "north", "7", "", 0, "0" * 32, now, now + 60_000)
    sign_order(message.content, order, old, {})
    node = {"client": "north", "state-dir": str(tmp_path), "folder": str(operator.site("north").path)}
    reply = client_app(message, Context(1, 7, node, RecordDict(), {}))
    assert "The server's certificate expired on" in unpack_reply(reply.content, client=0).reason
    assert "fedmcc federation renew" in caplog.text
    assert "Send your images" not in caplog.text


def test_names_of_image_files_are_neither_logged_nor_sent(operator, tmp_path, caplog):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "patient-17.png").write_bytes(b"not an image")
    recipe = config.dump(config.parse({"clusters": 2, "data": {"name": "folder", "size": 8}}))
    message = Message(pack_greeting(Greeting(recipe)), 7, "query.hello")
    now = round(1000 * time.time())
    order = Order("query.hello", "run", "north", "7", "", 0, "0" * 32, now, now + 60_000)
    sign_order(message.content, order, load_server(operator.key, operator.certificate), {})
    folders = {"state-dir": str(tmp_path), "folder": str(operator.site("north").path)}
    node = {"client": "north", "data": str(tmp_path / "images"), **folders}
    reply = client_app(message, Context(1, 7, node, RecordDict(), {}))
    assert unpack_reply(reply.content, client=0).reason == "it failed (see its log)."
    assert "fedmcc site check" in caplog.text
    assert "patient" not in caplog.text


def test_an_unexpected_error_is_logged_without_its_message(operator, tmp_path, caplog, monkeypatch):
    image = "patient-17.png"

    def fail(self, greeting):
        raise PermissionError(13, "Permission denied", image)

    monkeypatch.setattr(SiteWorker, "hello", fail)
    node = {"partition-id": 0, "num-partitions": 1}
    message = Message(pack_greeting(Greeting("")), 7, "query.hello")
    client_app(message, Context(1, 7, node, RecordDict(), {"sites": str(tmp_path)}))
    assert "PermissionError: Permission denied\n" in caplog.text
    assert image not in caplog.text


def test_a_site_starts_without_the_libraries_that_only_score():
    heavy = "{'sklearn', 'scipy', 'plotly'} & set(sys.modules)"
    command = f"import sys, fedmcc.deployment.site.app; sys.exit(str({heavy} or '') or 0)"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stderr == ""


def _context(**node):
    return Context(1, 1, node, RecordDict(), {"sites": "/runs/one/sites"})


def test_the_node_config_describes_the_site(tmp_path):
    folders = {"state-dir": str(tmp_path), "folder": str(tmp_path), "data": "/images"}
    SiteFolder(tmp_path).config_file.write_text('name = "a"\n[policy]\nmax_rounds = 5\n')
    site = read_site(_context(client="a", shard="2/3", **folders))
    assert (site.name, site.folder, str(site.data), site.shard) == ("a", tmp_path, "/images", Shard(2, 3))
    assert site.policy.max_rounds == 5


def test_nodes_of_a_simulation_are_numbered_in_the_order_of_their_names():
    names = [read_site(_context(**{"partition-id": part, "num-partitions": 12})).name for part in range(12)]
    assert names == sorted(names)


def test_only_nodes_of_a_simulation_have_no_keys(tmp_path):
    assert read_identity(_context(**{"partition-id": 0, "num-partitions": 2})) is None
    identity = read_identity(_context(**{"client": "a", "folder": str(tmp_path), "partition-id": 0}))
    assert identity == SiteIdentity(SiteFolder(tmp_path), 1)
    with pytest.raises(InputError, match="has no folder"):
        read_identity(_context(**{"client": "a", "partition-id": 0}))


def test_a_server_with_another_version_of_the_messages_is_named(tmp_path):
    node = {"client": "a", "folder": str(tmp_path)}
    with pytest.raises(InputError, match="version 5 of the messages and this site version 4: install"):
        read_identity(Context(1, 1, node, RecordDict(), {"protocol": 5}))


@pytest.mark.parametrize("node", [{}, {"client": "a"}, {"client": "a", "state-dir": "x", "shard": "3/3"}])
def test_an_incomplete_node_config_is_refused(node):
    with pytest.raises(InputError, match=r"node-config has no|shard is"):
        read_site(_context(**node))
