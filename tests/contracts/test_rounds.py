"""What every stage promises about its clients: they resume to the bit, and nothing of their notes travels."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from fedmcc.data.synthetic import Synthetic
from fedmcc.federation.client import Client
from fedmcc.messages import Task
from fedmcc.numerics.state_dicts import add_prefix, detached, select
from fedmcc.storage.safetensor_files import encoded_chunks, load_state
from fedmcc.training.loop import Training
from fedmcc.views import preset

IMAGES = 23  # no part of a network has this length
ROUNDS = 2


def _client():
    images = Synthetic(samples=IMAGES, size=8, channels=1).load().images
    return Client(0, images, preset("digits"), Training(batch_size=11, keep_optimizer=True), seed=3)


def _answer(client, net, stage, task, state):
    """The update and the new state of one round, without its steps."""
    answer = client.answer(net, stage, task, state)
    while True:
        try:
            next(answer)
        except StopIteration as end:
            return end.value


def _built(case):
    net, stage = case.build("batch")
    return net, replace(stage, epochs=min(stage.epochs, 1))


@cache
def _rounds(case, folder=None):
    """The updates and the last state of a client; with a folder, it restarts from a file in every round."""
    (net, stage), client, updates = _built(case), _client(), []
    model = detached(net.state_dict())
    state = add_prefix("net", model)
    for number in range(1, ROUNDS + 1):
        if folder is not None:
            (net, stage), path = _built(case), folder / "state.safetensors"
            path.write_bytes(b"".join(encoded_chunks(state)))
            state = load_state(path)
        task = Task(0, stage.name, number, select(model, (*stage.shared, *stage.frozen)))
        update, state = _answer(client, net, stage, task, state)
        updates.append(update)
        model = {**model, **stage.combine([update], model).weights}
    return updates, state


def _assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_a_client_that_restarts_in_every_round_is_bit_identical(case, tmp_path):
    (updates, state), (expected, last) = _rounds(case, tmp_path), _rounds(case)
    for found, other in zip(updates, expected, strict=True):
        _assert_equal({**found.weights, **found.extras}, {**other.weights, **other.extras})
    _assert_equal(state, last)


def test_nothing_of_the_notes_travels(training_case):
    updates, state = _rounds(training_case)
    net, stage = training_case.build()
    notes = stage.first_notes(net, IMAGES)
    kept = {name.rpartition(".notes.")[2] for name in state if ".notes." in name}
    assert set(notes) <= kept
    for update in updates:
        sent = {**update.weights, **update.extras}
        assert not any("notes" in name for name in sent)
        assert not any(IMAGES in value.shape for value in sent.values())


@pytest.mark.parametrize("name", ["idfd", "gcc"])
def test_stages_with_notes_are_among_those_tested(cases, name):
    built = [case.build() for case in cases if case.name == name]
    assert any(stage.first_notes(net, IMAGES) for net, stage in built)
