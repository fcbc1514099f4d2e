"""The messages between server and sites, and how their bytes are counted."""

import time

import pytest
import torch

from fedmcc.config import parse_text
from fedmcc.deployment.flower.records import unpack_reply, unpack_task

pytestmark = pytest.mark.slow  # takes seconds


def test_bytes_in_the_metrics_are_those_of_the_records_each_way(three):
    federation, passed = three("informative"), []
    federation.grid.spoil = lambda message, reply: passed.append((message, reply)) or reply
    for _ in federation.serve():
        pass
    sent = [tuple(map(_size, pair)) for pair in passed if pair[0].metadata.message_type == "train"]
    rows = federation.rows()
    counted = [tuple(row["bytes"][client]) for row in rows for client in sorted(row["bytes"])]
    assert counted == sent  # tasks are sent in the order of the clients
    assert [(row["bytes_down"], row["bytes_up"]) for row in rows] == [
        tuple(map(sum, zip(*sent[start : start + 3], strict=True))) for start in range(0, len(sent), 3)
    ]


def _size(message):
    """Bytes of all arrays in a message: only they grow with the network."""
    records = message.content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def test_tasks_that_were_not_sent_are_not_counted(three):
    federation = three()
    rounds = federation.serve()
    next(rounds)
    federation.grid.away = {10}
    time.sleep(1.1)  # until the server requests the list of nodes again
    next(rounds)
    first, second = federation.rows()
    (absent,) = second["dropped"]
    assert str(absent) in first["bytes"]
    assert str(absent) not in second["bytes"]


def test_each_machine_resolves_its_own_precision(three):
    federation, messages = three(training={"batch_size": 8, "precision": "auto"}), []
    federation.grid.spoil = lambda message, reply: messages.append(message) or reply
    next(federation.serve())
    (sent,) = {unpack_task(each.content).config for each in messages if each.metadata.message_type == "train"}
    assert parse_text(sent).training.precision == "auto"


def test_updates_of_sites_are_clipped(three):
    federation, passed = three(privacy={"clip": 0.01}), []
    federation.grid.spoil = lambda message, reply: passed.append((message, reply)) or reply
    next(federation.serve())
    moved = [_distance(*pair) for pair in passed if pair[0].metadata.message_type == "train"]
    assert moved == pytest.approx([0.01] * 3, rel=1e-3)


def _distance(message, reply):
    """The distance between the weights of a reply and those of its task."""
    task = unpack_task(message.content).task
    answer = unpack_reply(reply.content, task.client)
    weights = answer.update.weights
    squares = [
        (value - task.weights[name]).square().sum()
        for name, value in weights.items()
        if value.is_floating_point()
    ]
    return float(torch.stack(squares).sum().sqrt())
