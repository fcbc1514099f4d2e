import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from PIL import Image

from fedmcc import config
from fedmcc.deployment.app import client_app, service_of, site_of
from fedmcc.deployment.flower.records import unpack_reply
from fedmcc.deployment.messages import Greeting, SiteTask
from fedmcc.deployment.server.bundle import DEFAULTS, write_bundle
from fedmcc.deployment.site.worker import ForgottenError, RefusalError, Shard, SiteMemory, SiteWorker
from fedmcc.errors import InputError
from fedmcc.messages import StageRound, Task

STATE = {"net.weight": torch.arange(3.0)}


def _moments(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_the_round_that_counted_and_the_one_since_are_kept(tmp_path):
    notes, rounds = SiteMemory(tmp_path), [StageRound("joint", number) for number in range(1, 4)]
    notes.keep(rounds[0], STATE, None)
    notes.keep(rounds[1], STATE, rounds[0])
    notes.keep(rounds[2], STATE, rounds[0])  # round 2 never counted
    assert _moments(tmp_path) == ["joint-000001.safetensors", "joint-000003.safetensors"]
    assert torch.equal(notes.recall(rounds[0])["net.weight"], STATE["net.weight"])


def test_half_a_file_of_a_crash_is_swept_away(tmp_path):
    (tmp_path / ".joint-000001.safetensors.abc").write_text("half a")
    SiteMemory(tmp_path).keep(StageRound("joint", 1), STATE, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joint-000001.safetensors"]


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_what_is_missing_or_damaged_is_forgotten_and_no_crash(content, tmp_path):
    if content is not None:
        (tmp_path / "joint-000001.safetensors").write_bytes(content)
    with pytest.raises(ForgottenError):
        SiteMemory(tmp_path).recall(StageRound("joint", 1))


def test_a_site_does_one_thing_at_a_time(tmp_path):
    notes, order = SiteMemory(tmp_path), []

    def work():
        with notes.locked(time.time() + 60):
            order.append("second")

    with notes.locked(None):
        with pytest.raises(RefusalError, match="still busy"), notes.locked(time.time() - 1):
            pass
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_task_that_has_lapsed_is_refused_and_leaves_what_is_remembered(three):
    federation = three()
    next(federation.serve())
    order = next(m for m in federation.grid.sent if m.metadata.message_type == "train")
    node = federation.grid.nodes[order.metadata.dst_node_id]
    (kept,) = Path(node["state-dir"]).rglob("*.safetensors")
    kept.rename(kept.with_stem("representation-000009"))  # of a later task
    order.metadata.created_at -= order.metadata.ttl + 1
    reply = client_app(order, Context(1, 1, node, RecordDict(), {}))
    assert unpack_reply(reply.content, client=0).reason == "Its task came too late to be begun."
    assert [path.stem for path in kept.parent.glob("*.safetensors")] == ["representation-000009"]


def test_a_finished_run_is_forgotten_and_no_other(tmp_path):
    recipe = config.dump(config.parse({"clusters": 2, "data": {"name": "synthetic", "limit": 4}}))
    for run in ("done", "busy", "interrupted"):
        (tmp_path / run).mkdir()
        SiteMemory(tmp_path / run).keep(StageRound("joint", 1), STATE, None)
    with SiteMemory(tmp_path / "busy").locked(None):
        SiteWorker("a", tmp_path).hello(Greeting(recipe, ("done", "busy", "elsewhere", "..")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "interrupted"]
    assert _moments(tmp_path / "busy") == _moments(tmp_path / "interrupted") == ["joint-000001.safetensors"]


@pytest.mark.parametrize(("run", "stage"), [("../../etc", "representation"), ("abc", "../../etc")])
def test_an_order_cannot_name_files_elsewhere(run, stage, tmp_path):
    recipe = config.dump(config.parse({"clusters": 3, "method": {"name": "fedema"}}))
    order = SiteTask(run, recipe, "", StageRound(stage, 1), Task(0, "representation", 1, {}))
    with pytest.raises(RefusalError, match="a run or a stage that there cannot be"):
        SiteWorker("a", tmp_path).answer(order, time.time())
    assert list(tmp_path.iterdir()) == []


def test_a_site_decodes_its_own_folder_as_the_recipe_says(tmp_path):
    (tmp_path / "own").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 24, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "own" / f"{number}.png")
    table = {
        "clusters": 2,
        "data": {"name": "folder", "root": "/elsewhere", "size": 16},
        "views": {"size": 8},
    }
    hello = SiteWorker("a", tmp_path, tmp_path / "own").hello(Greeting(config.dump(config.parse(table))))
    assert (hello.samples, hello.channels, hello.size) == (4, 3, 16)


def test_a_site_starts_without_the_libraries_that_only_score():
    heavy = "{'sklearn', 'scipy', 'plotly'} & set(sys.modules)"
    command = f"import sys, fedmcc.deployment.app; sys.exit(str({heavy} or '') or 0)"
    assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stderr == ""


def _context(**node):
    return Context(1, 1, node, RecordDict(), {"run": "/runs/one"})


def test_a_node_says_who_it_is(tmp_path):
    node = {"client": "a", "state-dir": str(tmp_path), "data": "/images", "shard": "2/3"}
    site = site_of(_context(**node))
    assert (site.name, site.folder, str(site.data), site.shard) == ("a", tmp_path, "/images", Shard(2, 3))


def test_nodes_of_a_simulation_are_numbered_in_the_order_of_their_names():
    names = [site_of(_context(**{"partition-id": part, "num-partitions": 12})).name for part in range(12)]
    assert names == sorted(names)


@pytest.mark.parametrize("node", [{}, {"client": "a"}, {"client": "a", "state-dir": "x", "shard": "3/3"}])
def test_a_node_that_does_not_say_who_it_is_gets_a_sentence(node):
    with pytest.raises(InputError, match=r"node-config has no|shard is"):
        site_of(_context(**node))


@pytest.mark.parametrize("change", [{"sites": "a,a"}, {"run": ""}])
def test_a_server_that_is_started_wrongly_gets_a_sentence(change):
    with pytest.raises(InputError, match=r"name each site once|give the path"):
        service_of({"run": "/runs/one", **change})


def test_the_bundle_declares_all_that_a_server_can_be_told(tmp_path):
    from flwr.common.config import get_project_config

    write_bundle(tmp_path / "bundle")
    app = get_project_config(tmp_path / "bundle")["tool"]["flwr"]["app"]
    assert app["config"] == DEFAULTS
    assert app["components"]["clientapp"] == "fedmcc.deployment.app:client_app"
