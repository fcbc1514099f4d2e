"""How a site does its tasks, and the states that it keeps on its disk."""

import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from fedmcc import config
from fedmcc.deployment.messages import Greeting, SiteTask
from fedmcc.deployment.site.memory import LostStateError, RefusalError, SiteMemory
from fedmcc.deployment.site.worker import SiteWorker
from fedmcc.messages import StageRound, Task

STATE = {"net.weight": torch.arange(3.0)}


def _states(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_the_last_averaged_round_and_the_one_since_are_kept(tmp_path):
    memory, rounds = SiteMemory(tmp_path), [StageRound("joint", number) for number in range(1, 4)]
    memory.save(rounds[0], STATE, None)
    memory.save(rounds[1], STATE, rounds[0])
    memory.save(rounds[2], STATE, rounds[0])  # round 2 was not averaged
    assert _states(tmp_path) == ["joint-000001.safetensors", "joint-000003.safetensors"]
    assert torch.equal(memory.load(rounds[0])["net.weight"], STATE["net.weight"])


def test_a_temporary_file_of_a_crash_is_deleted(tmp_path):
    (tmp_path / ".joint-000001.safetensors.abc").write_text("half a")
    SiteMemory(tmp_path).save(StageRound("joint", 1), STATE, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joint-000001.safetensors"]


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_missing_or_damaged_state_counts_as_lost(content, tmp_path):
    if content is not None:
        (tmp_path / "joint-000001.safetensors").write_bytes(content)
    with pytest.raises(LostStateError):
        SiteMemory(tmp_path).load(StageRound("joint", 1))


def test_a_site_does_one_task_at_a_time(tmp_path):
    memory, order = SiteMemory(tmp_path), []

    def work():
        with memory.locked(time.time() + 60):
            order.append("second")

    with memory.locked(None):
        with pytest.raises(RefusalError, match="still busy"), memory.locked(time.time() - 1):
            pass
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_states_of_finished_runs_are_deleted_and_no_others(tmp_path):
    table = {"clusters": 2, "data": {"name": "synthetic", "limit": 4}, "clustering": {"smallest": 2}}
    recipe = config.dump(config.parse(table))
    for run in ("done", "busy", "interrupted"):
        (tmp_path / run).mkdir()
        SiteMemory(tmp_path / run).save(StageRound("joint", 1), STATE, None)
    with SiteMemory(tmp_path / "busy").locked(None):
        SiteWorker("a", tmp_path).hello(Greeting(recipe, ("done", "busy", "elsewhere", "..")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "interrupted"]
    assert _states(tmp_path / "busy") == _states(tmp_path / "interrupted") == ["joint-000001.safetensors"]


def test_a_site_with_fewer_images_than_a_centroid_must_represent_refuses_the_recipe(tmp_path):
    recipe = config.dump(config.parse({"clusters": 2, "data": {"name": "synthetic", "limit": 9}}))
    with pytest.raises(RefusalError, match=r"fewer different images than a centroid must represent \(10\)"):
        SiteWorker("a", tmp_path).hello(Greeting(recipe, ()))


def test_a_site_that_stores_one_photograph_often_has_too_few_images(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(12):
        Image.new("L", (8, 8), 10 + number // 11).save(tmp_path / "images" / f"{number}.png")
    recipe = config.dump(config.parse({"clusters": 2}))
    with pytest.raises(RefusalError, match=r"fewer different images than a centroid must represent \(10\)"):
        SiteWorker("a", tmp_path, tmp_path / "images").hello(Greeting(recipe, ()))


@pytest.mark.parametrize(("run", "stage"), [("../../etc", "representation"), ("abc", "../../etc")])
def test_a_task_cannot_name_files_elsewhere(run, stage, tmp_path):
    recipe = config.dump(config.parse({"clusters": 3, "method": {"name": "fedema"}}))
    site_task = SiteTask(run, recipe, "", StageRound(stage, 1), Task(0, "representation", 1, {}))
    with pytest.raises(RefusalError, match="invalid run or stage"):
        SiteWorker("a", tmp_path).answer(site_task, time.time())
    assert list(tmp_path.iterdir()) == []


def test_a_site_decodes_its_folder_with_the_options_of_the_recipe(tmp_path):
    (tmp_path / "own").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 24, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "own" / f"{number}.png")
    table = {
        "clusters": 2,
        "data": {"name": "folder", "root": "/elsewhere", "size": 16},
        "views": {"size": 8},
        "clustering": {"smallest": 2},
    }
    hello = SiteWorker("a", tmp_path, tmp_path / "own").hello(Greeting(config.dump(config.parse(table))))
    assert (hello.samples, hello.channels, hello.size) == (4, 3, 16)
