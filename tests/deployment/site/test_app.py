"""The app of a site: which site a Flower node is, and its replies to messages that it cannot answer."""

import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedmcc.deployment.flower.records import unpack_reply
from fedmcc.deployment.site.app import client_app, read_site
from fedmcc.deployment.site.worker import Shard
from fedmcc.errors import InputError

pytestmark = pytest.mark.slow  # takes seconds


def test_an_expired_task_is_refused_and_keeps_the_state(three):
    federation = three()
    next(federation.serve())
    message = next(m for m in federation.grid.sent if m.metadata.message_type == "train")
    node = federation.grid.nodes[message.metadata.dst_node_id]
    (kept,) = Path(node["state-dir"]).rglob("*.safetensors")
    kept.rename(kept.with_stem("representation-000009"))  # of a later task
    message.metadata.created_at -= message.metadata.ttl + 1
    reply = client_app(message, Context(1, 1, node, RecordDict(), {}))
    assert unpack_reply(reply.content, client=0).reason == "The task expired before it was started."
    assert [path.stem for path in kept.parent.glob("*.safetensors")] == ["representation-000009"]


def test_a_site_starts_without_the_libraries_that_only_score():
    heavy = "{'sklearn', 'scipy', 'plotly'} & set(sys.modules)"
    command = f"import sys, fedmcc.deployment.site.app; sys.exit(str({heavy} or '') or 0)"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stderr == ""


def _context(**node):
    return Context(1, 1, node, RecordDict(), {"run": "/runs/one"})


def test_the_node_config_describes_the_site(tmp_path):
    node = {"client": "a", "state-dir": str(tmp_path), "data": "/images", "shard": "2/3"}
    site = read_site(_context(**node))
    assert (site.name, site.folder, str(site.data), site.shard) == ("a", tmp_path, "/images", Shard(2, 3))


def test_nodes_of_a_simulation_are_numbered_in_the_order_of_their_names():
    names = [read_site(_context(**{"partition-id": part, "num-partitions": 12})).name for part in range(12)]
    assert names == sorted(names)


@pytest.mark.parametrize("node", [{}, {"client": "a"}, {"client": "a", "state-dir": "x", "shard": "3/3"}])
def test_an_incomplete_node_config_is_refused(node):
    with pytest.raises(InputError, match=r"node-config has no|shard is"):
        read_site(_context(**node))
