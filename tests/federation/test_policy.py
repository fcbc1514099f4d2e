"""The policy of rounds: participants, refused updates, repeated rounds and half precision."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmcc.config import parse
from fedmcc.data import load_dataset
from fedmcc.errors import InputError
from fedmcc.federation.client import Client
from fedmcc.federation.engines import Engine
from fedmcc.federation.engines.embedded import Embedded
from fedmcc.federation.policy import Federation, Policy
from fedmcc.federation.rounds import Progress, Round, RoundFailedError, rounds
from fedmcc.messages import Update
from fedmcc.methods.base import Stage
from fedmcc.methods.mcc import MCC
from fedmcc.networks.convnet import ConvNetOptions
from fedmcc.networks.initialise import initialise
from fedmcc.numerics.state_dicts import detached, select
from fedmcc.runs.build import assemble
from fedmcc.runs.experiment import Scored, start_run, steps
from fedmcc.training.loop import Training
from fedmcc.views import preset

pytestmark = pytest.mark.slow  # takes seconds

HEAD = ("online.cluster_projector",)
SHARDS = (slice(0, 10), slice(10, 34), slice(34, 60))


def _net():
    encoder = ConvNetOptions(width=4).build(1, 8)
    net = MCC(projections=8).build(encoder, encoder.features, 3)
    initialise(net, torch.Generator().manual_seed(1))
    return net


def _engine(shards):
    images, training = load_dataset("digits", limit=60).images, Training(batch_size=8, keep_optimizer=True)
    clients = [
        Client(index, images[rows], preset("digits"), training, seed=0) for index, rows in enumerate(shards)
    ]
    return Embedded(_net(), clients)


def _stage(rounds=2):
    return MCC(rounds=rounds, epochs=1).stages()[0]


def _head(rounds=3):
    return Stage(name="head", rounds=rounds, epochs=1, trained=HEAD, shared=HEAD, frozen=("online.encoder",))


def _all_rounds(engine, clients, stage, progress=None, **options):
    progress, policy = progress or Progress(detached(_net().state_dict())), Policy(Federation(**options))
    return [event for event in rounds(stage, progress, engine, clients, policy) if isinstance(event, Round)]


class Recording(Engine):
    """An engine that records the tasks and whose clients return the weights unchanged."""

    def __init__(self):
        self.tasks = []

    def run(self, stage, tasks):
        self.tasks.append({task.client: task for task in tasks})
        for task in tasks:
            yield Update(task.client, stage.name, task.round, 10, 0.5, select(task.weights, HEAD))

    def commit(self, accepted):
        self.committed = accepted


class Tampering(Engine):
    """An engine whose updates are replaced by those of `disturb(attempt, update)`."""

    def __init__(self, engine, disturb):
        self.engine, self.disturb, self.attempt = engine, disturb, 0
        self.commit = engine.commit

    def run(self, stage, tasks):
        self.attempt += 1
        for event in self.engine.run(stage, tasks):
            yield from self.disturb(self.attempt, event) if isinstance(event, Update) else [event]


def _same(one, other):
    return all(torch.equal(one.progress.model[name], value) for name, value in other.progress.model.items())


HOSTILE = 3


def _spoiled(update, change):
    name, value = next(iter(update.weights.items()))
    return replace(update, weights={**update.weights, name: change(value)})


def _without_first(update):
    return replace(update, weights=dict(list(update.weights.items())[1:]))


ATTACKS = {
    "not finite": lambda update: [_spoiled(update, lambda value: value * torch.nan)],
    "shape": lambda update: [_spoiled(update, lambda value: value[:-1])],
    "type": lambda update: [_spoiled(update, lambda value: value.double())],
    "moved by": lambda update: [_spoiled(update, lambda value: value * 1e6)],
    "is missing": lambda update: [_without_first(update)],
    "not shared": lambda update: [replace(update, weights=update.weights | {"target.x": torch.zeros(1)})],
    "number of images": lambda update: [replace(update, samples=-5)],
    "loss": lambda update: [replace(update, loss=float("inf"))],
    "answers round": lambda update: [replace(update, round=update.round - 1)],
    "answered 2 times": lambda update: [update, update],
    "has no task": lambda update: [replace(update, client=99)],
    "Unexpected extra tensor": lambda update: [replace(update, extras={"surprise": torch.zeros(2)})],
}


@pytest.mark.parametrize("reason", ATTACKS)
def test_a_hostile_update_is_refused_and_the_run_ends_as_without_that_client(reason):
    attack = ATTACKS[reason]
    engine = Tampering(
        _engine((*SHARDS, slice(0, 20))),
        lambda _, update: attack(update) if update.client == HOSTILE else [update],
    )
    attacked, alone = (
        _all_rounds(engine, range(4), _stage()),
        _all_rounds(_engine(SHARDS), range(3), _stage()),
    )
    for round in attacked:
        assert [update.client for update in round.updates] == [0, 1, 2]
        ((client, sentence),) = round.refused
        assert client in (HOSTILE, 99)
        assert reason in sentence
    assert _same(attacked[-1], alone[-1])


def test_a_refused_client_continues_from_its_previous_state():
    """Like a client that did not answer: the cause of the bad update may be in the new state as well."""
    disturbances = [lambda update: ATTACKS["not finite"](update), lambda update: []]
    engines = [
        Tampering(
            _engine(SHARDS), lambda n, update, do=do: do(update) if (n, update.client) == (1, 2) else [update]
        )
        for do in disturbances
    ]
    refused, dropped = (_all_rounds(engine, range(3), _stage(3)) for engine in engines)
    assert (refused[0].dropped, dropped[0].dropped, dropped[0].refused) == ((), (2,), ())
    assert [update.client for update in refused[1].updates] == [0, 1, 2]
    assert _same(refused[-1], dropped[-1])


def test_a_refused_client_is_sent_the_frozen_parts_again():
    engine = Recording()
    stage = Stage(name="head", rounds=2, epochs=1, trained=HEAD, shared=HEAD, frozen=("online.encoder",))
    attack = ATTACKS["not finite"]
    tampering = Tampering(
        engine, lambda n, update: attack(update) if (n, update.client) == (1, 1) else [update]
    )
    first, second = _all_rounds(tampering, range(3), stage)
    assert first.progress.holders == {"online.encoder": {0, 2}}
    assert second.progress.holders == {"online.encoder": {0, 1, 2}}
    with_encoder = {client for client, task in engine.tasks[1].items() if select(task.weights, stage.frozen)}
    assert with_encoder == {1}


def test_a_round_with_too_few_updates_is_repeated_and_affects_only_the_statistics():
    engine = Tampering(_engine(SHARDS), lambda n, update: [] if n == 1 and update.client else [update])
    repeated = _all_rounds(engine, range(3), _stage(), minimum=2)
    whole = _all_rounds(_engine(SHARDS), range(3), _stage())
    assert _same(repeated[-1], whole[-1])
    assert [round.attempt for round in repeated] == [2, 1]
    assert repeated[0].dropped == (1, 2)
    assert repeated[0].bytes_down == 2 * whole[0].bytes_down
    assert repeated[0].bytes_up == whole[0].bytes_up + whole[0].traffic[0].up


def test_too_few_updates_in_every_attempt_raise_an_error_with_the_reasons():
    engine = Tampering(Recording(), lambda _, update: [] if update.client else ATTACKS["loss"](update))
    sentence = (
        r"Round 1 of the stage head failed 4 times: 0 updates .* 1 needed \(client 0: its loss is inf; "
    )
    with pytest.raises(RoundFailedError, match=sentence + "client 1 did not answer"):
        _all_rounds(engine, [0, 1], _head(), attempts=4)
    assert engine.attempt == 4


def test_participants_are_drawn_evenly_and_by_place_alone():
    policy, clients = Policy(Federation(count=3), seed=5), list(range(10))
    drawn = [policy.draw(clients, "joint", number, 1) for number in range(1000)]
    assert all(len(set(each)) == 3 and each == sorted(each) for each in drawn)
    counts = Counter(client for each in drawn for client in each)
    deviation = (1000 * 0.3 * 0.7) ** 0.5
    assert all(abs(counts[client] - 300) < 4 * deviation for client in clients)
    assert policy.draw(clients, "joint", 7, 1) == drawn[7]
    others = [policy.draw(clients, *place) for place in (("head", 7, 1), ("joint", 7, 2), ("joint", 8, 1))]
    assert [drawn[7]] * 3 != others
    assert Policy(policy.federation, seed=6).draw(clients, "joint", 7, 1) != drawn[7]


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, 1000), ({"fraction": 0.01}, 10), ({"fraction": 1e-6}, 1), ({"fraction": 0.5, "count": 7}, 7)],
)
def test_fraction_or_count_sets_how_many_clients_take_part(options, size):
    engine = Recording()
    first, _ = _all_rounds(engine, range(1000), _head(2), **options)
    assert [len(tasks) for tasks in engine.tasks] == [size] * 2
    assert [update.client for update in first.updates] == sorted(engine.tasks[0])
    assert (set(engine.tasks[0]) == set(engine.tasks[1])) == (size == 1000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"count": 4}, "count is 4, but there are only 3 clients"),
        ({"fraction": 0.3, "minimum": 2}, "minimum is 2"),
    ],
)
def test_impossible_rounds_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        _all_rounds(Recording(), range(3), _head(), **options)


@pytest.mark.parametrize(
    "options", [{"fraction": 0.0}, {"count": 0}, {"minimum": 0}, {"attempts": 0}, {"norm_limit": 1.0}]
)
def test_an_option_out_of_range_is_named(options):
    with pytest.raises(InputError, match=f"federation.{next(iter(options))} is"):
        Federation(**options)


def test_an_interrupted_federation_draws_the_same_clients():
    whole, engine = _all_rounds(Recording(), range(50), _head(6), count=3), Recording()
    part = _all_rounds(engine, range(50), _head(2), count=3)
    rest = _all_rounds(engine, range(50), _head(6), part[-1].progress, count=3)
    drawn = [[update.client for update in round.updates] for round in part + rest]
    assert drawn == [[update.client for update in round.updates] for round in whole]


def test_half_precision_takes_half_the_bytes_of_weights_both_ways():
    (single,), (half,) = (
        _all_rounds(_engine(SHARDS), range(3), _stage(1), half=half) for half in (False, True)
    )
    counters = 3 * sum(value.nbytes for name, value in _net().state_dict().items() if _is_counter(name))
    assert half.bytes_down == half.bytes_up == (single.bytes_up - counters) // 2 + counters


def _is_counter(name):
    return name.startswith("online.") and "num_batches" in name


def test_half_precision_rounds_what_is_sent_and_nothing_else():
    engine, model = Recording(), detached(_net().state_dict())
    (round,) = _all_rounds(engine, [0], _head(1), half=True)
    for name, value in engine.tasks[0][0].weights.items():
        assert value.dtype == (torch.int64 if "num_batches" in name else torch.float16)
        np.testing.assert_array_equal(value.numpy(), model[name].numpy().astype(value.numpy().dtype))
    assert all(value.dtype == model[name].dtype for name, value in round.progress.model.items())
    target = {name: value for name, value in round.progress.model.items() if name.startswith("target.")}
    assert all(torch.equal(model[name], value) for name, value in target.items())


def test_clients_compute_in_single_precision_and_answer_in_half():
    sent = []
    engine = Tampering(_engine(SHARDS), lambda _, update: sent.append(update) or [update])
    (round,) = _all_rounds(engine, [0], _stage(1), half=True)
    for name, value in sent[0].weights.items():
        assert torch.equal(round.progress.model[name], value.to(round.progress.model[name].dtype))
    assert {value.dtype for value in sent[0].weights.values()} == {torch.float16, torch.int64}


def test_a_run_whose_first_round_fails_does_not_offer_to_resume(tmp_path, monkeypatch):
    table = {"encoder": {"width": 4}, "method": {"name": "mcc", "rounds": 2}, "partition": {"clients": 3}}
    settings = {"seed": 1, "threads": 1, "device": "cpu", "training": {"batch_size": 8}}
    experiment = assemble(parse(table | settings), load_dataset("digits", limit=60))
    monkeypatch.setattr(experiment.engine, "run", lambda stage, tasks: iter(()))
    with pytest.raises(RoundFailedError, match="Round 1") as failed:
        list(steps(experiment, start_run(experiment, tmp_path / "run")))
    assert "resume" not in str(failed.value)


def test_a_run_whose_round_fails_keeps_the_rounds_before_and_names_the_command_to_resume(
    tmp_path, monkeypatch
):
    table = {"encoder": {"width": 4}, "method": {"name": "mcc", "rounds": 2}, "partition": {"clients": 3}}
    settings = {"seed": 1, "threads": 1, "device": "cpu", "training": {"batch_size": 8}}
    experiment = assemble(parse(table | settings), load_dataset("digits", limit=60))
    run = start_run(experiment, tmp_path / "my run")
    events, engine = steps(experiment, run), experiment.engine
    row = next(event for event in events if isinstance(event, Scored)).row
    monkeypatch.setattr(engine, "run", lambda stage, tasks: iter(()))
    with pytest.raises(RoundFailedError, match=r"Round 2 .* resume with: fedmcc resume '.*my run'"):
        list(events)
    assert run.rows() == [row]
    assert (row["participants"], row["refused"], row["dropped"], "attempt" in row) == (
        [0, 1, 2],
        [],
        [],
        False,
    )
    assert sum(down for down, _ in row["bytes"].values()) == row["bytes_down"]
