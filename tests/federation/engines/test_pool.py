import json
import os
import signal
from dataclasses import replace
from multiprocessing import active_children

import pytest
import torch

from fedmcc.config import parse
from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.federation.engines import Engine
from fedmcc.federation.engines.pool import PoolOptions
from fedmcc.federation.rounds import Progress, Round, rounds
from fedmcc.messages import Task, Update
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.runs import experiment
from fedmcc.runs.build import assemble
from fedmcc.training.loop import DivergedError, Step, Training

pytestmark = pytest.mark.slow  # whole runs or processes

SMALL = {"hidden": 8, "projections": 4}
METHODS = {
    "mcc": {"rounds": 2, **SMALL},
    "fedmcc": {"rounds": 2, "hidden": 8},
    "fedema": {"rounds": 3, "epochs": 1, **SMALL},
    "idfd": {"rounds": 3, "epochs": 2, "projections": 4},  # notes about images
    "gcc": {"rounds": 1, "graph_rounds": 2, "interval": 1, **SMALL},
    "mice": {"rounds": 2, "projections": 4, "queue": 16},  # a target, a queue and notes
    "dccm": {"rounds": 2, "hidden": 8, "critic": 8},
    "jule": {"rounds": 2, "period": 1, "neighbours": 5},
    "dec": {"rounds": 1, "lloyd_rounds": 1, "hardening_rounds": 3, "width": 2, "code": 3},
}
CLUSTERINGS = {"mcc": {"rounds": 2, "epochs": 1, "hidden": 8}}


def _config(engine, method="mcc"):
    method, *clustering = method.split(" x ")
    table = {
        "clusters": 3,
        "seed": 3,
        "threads": 1,
        "device": "cpu",
        "encoder": {"width": 4},
        "method": {"name": method, **METHODS[method]},
        "partition": {"clients": 3, "uneven": 0.5},
        "training": {"batch_size": 8, "keep_optimizer": True},
        "engine": {"name": engine, **({"workers": 2} if engine == "pool" else {})},
    }
    for name in clustering:
        table["clustering"] = {"name": name, **CLUSTERINGS[name]}
    return parse(table)


def _assembled(engine="pool", method="mcc"):
    return assemble(_config(engine, method), load_dataset("digits", limit=60))


def _outcome(run):
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]
    return json.dumps(rows), run.model_file.read_bytes(), run.scores_file.read_text()


def _tasks(assembled, clients=(0, 1, 2)):
    (stage,) = assembled.stages
    weights = detached(select(assembled.net.state_dict(), stage.shared))
    return stage, [Task(client, stage.name, 1, weights) for client in clients]


def _updates(assembled, clients=(0, 1, 2)):
    events = assembled.engine.run(*_tasks(assembled, clients))
    return {event.client: event for event in events if isinstance(event, Update)}


def _pid(engine, client):
    return next(
        worker.process.pid for worker in engine.workers if worker.task and worker.task.client == client
    )


def _has_exited(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", [*METHODS, "fedmcc x mcc"])
def test_the_pool_is_bit_identical_to_the_embedded_engine(method, tmp_path):
    outcomes = []
    for engine in ("embedded", "pool"):
        assembled = _assembled(engine, method)
        run = experiment.start_run(assembled, tmp_path / engine)
        list(experiment.steps(assembled, run))
        outcomes.append(_outcome(run))
    assert outcomes[0] == outcomes[1]
    assert active_children() == []


def test_a_killed_worker_costs_its_client_this_round_and_nothing_else():
    expected = _updates(_assembled("embedded"))
    assembled, answered = _assembled(), []
    with assembled.engine as engine:
        for event in engine.run(*_tasks(assembled)):
            if isinstance(event, Step) and event.client == 1 and not _has_exited(pid := _pid(engine, 1)):
                os.kill(pid, signal.SIGKILL)
            if isinstance(event, Update):
                answered.append(event.client)
        assert sorted(answered) == [0, 2]
        engine.commit([0, 1, 2])
        assert sorted(engine.states) == [0, 2]
        again = _updates(assembled, clients=[1])
    assert _same(again[1].weights, expected[1].weights)


def test_workers_killed_between_rounds_cost_nothing():
    assembled = _assembled()
    with assembled.engine as engine:
        first = _updates(assembled)
        for worker in engine.workers:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
        second = _updates(assembled)
    assert second.keys() == first.keys() == {0, 1, 2}
    assert all(_same(first[client].weights, second[client].weights) for client in first)


def test_a_client_that_fails_drops_out_and_all_of_them_raise(caplog):
    assembled = _assembled()
    broken = Training(batch_size=2, learning_rate=1e30, keep_optimizer=False)
    with assembled.engine as engine:
        engine.clients[1] = replace(engine.clients[1], training=broken)
        assert sorted(_updates(assembled)) == [0, 2]
        assert "Client 1 drops out of joint, round 1: The loss became" in caplog.text
        with pytest.raises(DivergedError, match=r"lower training\.learning_rate"):
            _updates(assembled, clients=[1])


def test_an_abandoned_round_stops_its_workers():
    assembled = _assembled()
    with assembled.engine as engine:
        events = engine.run(*_tasks(assembled))
        next(events)
        pids = [worker.process.pid for worker in engine.workers]
        events.close()
        assert all(_has_exited(pid) for pid in pids)
        assert sorted(_updates(assembled, clients=[2])) == [2]


class Backwards(Engine):
    """An engine that runs the tasks in reverse order."""

    def __init__(self, engine):
        self.engine, self.commit = engine, engine.commit

    def run(self, stage, tasks):
        return self.engine.run(stage, tasks[::-1])


def test_the_order_of_replies_does_not_matter():
    models = []
    for wrap in (lambda engine: engine, Backwards):
        assembled = _assembled("embedded")
        progress = Progress(detached(assembled.net.state_dict()))
        events = list(rounds(assembled.stages[0], progress, wrap(assembled.engine), [0, 1, 2]))
        models.append([event.progress.model for event in events if isinstance(event, Round)][-1])
    assert _same(*models)


def test_workers_start_with_the_first_round_and_stop_with_the_engine():
    assembled = _assembled()
    assert active_children() == []
    with assembled.engine as engine:
        _updates(assembled, clients=[0])
        assert len(engine.workers) == 1  # not more than there are tasks
        (pid,) = (worker.process.pid for worker in engine.workers)
    assert _has_exited(pid)


@pytest.mark.parametrize("workers", [0, -1])
def test_fewer_than_one_worker_is_refused(workers):
    with pytest.raises(InputError, match=r"engine\.workers is .*: give 1 or more"):
        PoolOptions(workers=workers)


def test_resolved_options_have_a_number_of_workers():
    assert PoolOptions().resolve().workers == os.cpu_count()
    assert PoolOptions(workers=5).resolve().workers == 5
