import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data.base import ImageSet
from fedmcc.messages import Task, Update
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.runs import experiment
from fedmcc.runs.build import assemble
from fedmcc.training.loop import DivergedError, Training

pytestmark = pytest.mark.slow  # takes seconds


def _assembled(clients=3, images=24, **sections):
    pixels = np.random.default_rng(0).integers(0, 256, (images, 1, 8, 8), dtype=np.uint8)
    table = {
        "clusters": 2,
        "threads": 1,
        "device": "cpu",
        "encoder": {"width": 2},
        "method": {"name": "mcc", "rounds": 3, "hidden": 4, "projections": 4},
        "partition": {"clients": clients},
        "training": {"batch_size": 4},
        "evaluation": {"every": 1000},
    }
    return assemble(parse(table | sections), ImageSet(pixels, np.arange(images) % 2))


def _tasks(assembled, clients, round=1):
    (stage,) = assembled.stages
    weights = detached(select(assembled.net.state_dict(), stage.shared))
    return stage, [Task(client, stage.name, round, weights) for client in clients]


def _answered(engine, stage, tasks):
    return [event.client for event in engine.run(stage, tasks) if isinstance(event, Update)]


def _break(engine, client):
    """Let this client diverge from now on."""
    broken = Training(batch_size=2, learning_rate=1e30, keep_optimizer=False)
    engine.clients[client] = replace(engine.clients[client], training=broken)


def test_new_client_states_are_pending_until_the_commit():
    assembled = _assembled()
    engine = assembled.engine
    assert _answered(engine, *_tasks(assembled, [0, 1, 2])) == [0, 1, 2]
    assert len(engine.states) == 0
    engine.commit([0, 2])
    assert sorted(engine.states) == [0, 2]
    before = engine.states[0]
    _answered(engine, *_tasks(assembled, [0, 1], round=2))
    engine.commit([1])
    assert engine.states[0] is before
    assert sorted(engine.states) == [0, 1, 2]


def test_a_client_that_fails_drops_out_with_a_reason(caplog):
    assembled = _assembled()
    _break(assembled.engine, 1)
    with caplog.at_level(logging.WARNING):
        assert _answered(assembled.engine, *_tasks(assembled, [0, 1, 2])) == [0, 2]
    assert "Client 1 drops out of joint, round 1: The loss became" in caplog.text
    assembled.engine.commit([0, 1, 2])
    assert sorted(assembled.engine.states) == [0, 2]


def test_a_failed_client_does_not_affect_the_others():
    broken, whole = _assembled(), _assembled()
    _break(broken.engine, 0)
    updates = [
        [event for event in each.engine.run(*_tasks(each, clients)) if isinstance(event, Update)]
        for each, clients in ((broken, [0, 1, 2]), (whole, [1, 2]))
    ]
    for one, other in zip(*updates, strict=True):
        assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_when_all_clients_fail_the_reason_is_raised():
    assembled = _assembled()
    for client in range(3):
        _break(assembled.engine, client)
    with pytest.raises(DivergedError, match=r"lower training\.learning_rate"):
        _answered(assembled.engine, *_tasks(assembled, [0, 1, 2]))


def _sampled(clients, memory="1GB"):
    sections = {"partition": {"clients": clients}, "federation": {"count": 4}, "engine": {"memory": memory}}
    return _assembled(clients, images=4 * clients, **sections)


def _run(path, clients, memory="1GB"):
    assembled = _sampled(clients, memory)
    run = experiment.start_run(assembled, path)
    list(experiment.steps(assembled, run))
    return run


def test_a_thousand_clients_need_the_memory_of_those_that_take_part(tmp_path):
    assembled, in_memory = _sampled(1000), []
    run = experiment.start_run(assembled, tmp_path / "run")
    for event in experiment.steps(assembled, run):
        if isinstance(event, experiment.Scored):
            in_memory.append(assembled.engine.states.in_memory)
            if event.row["round"] == 2:
                break
    assert in_memory == [4, 4]
    assert len(list(run.resume_folder.glob("client-*"))) == 8


def test_runs_are_bit_identical_with_any_memory_limit(tmp_path):
    runs = [_run(tmp_path / memory, 9, memory) for memory in ("0", "100KB", "1GB")]
    assert len({run.model_file.read_bytes() for run in runs}) == 1
    names = {path.name for run in runs for path in run.resume_folder.iterdir()}
    assert not any(name.startswith("beyond") for name in names)


def test_a_run_resumes_without_reading_the_client_states(tmp_path, monkeypatch):
    run = _run(tmp_path / "run", 9)
    run.scores_file.unlink()
    read = []
    monkeypatch.setattr("fedmcc.federation.engines.client_states.load_state", read.append)
    list(experiment.steps(_sampled(9), run))
    assert read == []
