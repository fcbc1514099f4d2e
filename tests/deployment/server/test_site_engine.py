"""Rounds over a grid inside this process: bit-identical to the embedded engine, and faults of sites."""

import json
import time
from itertools import islice

import pytest
import torch
from flwr.app import Error, Message

from fedmcc.deployment.flower.records import PackedState, pack_state, unpack_state
from fedmcc.errors import InputError
from fedmcc.federation.rounds import RoundFailedError

pytestmark = pytest.mark.slow  # whole runs or processes

SMALL = {"hidden": 8, "projections": 4}
LONGER = {"name": "mcc", "rounds": 3, "epochs": 1, "hidden": 8}
SITES_ONLY = ("seconds", "sites", "waiting", "transport", "training", "reasons")


def _rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in SITES_ONLY} for row in rows]


def _outcome(run):
    files = ("checkpoints/final.safetensors", "assignments.csv", "scores.json")
    return (_rows(run), *((run / name).read_bytes() for name in files))


def _last_row(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("method", ["fedmcc", "fedema"])
def test_the_grid_is_bit_identical_to_the_embedded_engine(method, three, tmp_path):
    federation = three(method)
    expected = _outcome(federation.embedded())
    for _ in federation.serve():
        pass
    assert _outcome(tmp_path / "run") == expected


def test_the_grid_is_bit_identical_where_images_are_assigned_without_their_owners(three, tmp_path):
    federation = three("informative")
    rows, network, _, scores = _outcome(federation.embedded())
    for _ in federation.serve():
        pass
    found = _outcome(tmp_path / "run")
    assert found[:2] == (rows, network)
    unknown, owned = json.loads(found[3])["scores"], json.loads(scores)["scores"]
    assert owned.keys() - unknown.keys() == {"own"}  # the server does not know whose an image is
    assert unknown == {name: owned[name] for name in unknown}


def test_half_precision_and_drawn_sites_are_bit_identical_too(three, tmp_path):
    federation = three(federation={"half": True, "count": 2})
    expected = _outcome(federation.embedded())
    for _ in federation.serve():
        pass
    assert _outcome(tmp_path / "run") == expected


def test_a_server_that_stops_after_any_round_resumes_bit_identically(three, tmp_path):
    federation = three("fedmcc")
    expected = _outcome(federation.embedded())
    for _ in range(3):  # one round each, and another that is interrupted
        list(islice(federation.serve(), 1))
    for _ in federation.serve():
        pass
    assert _outcome(tmp_path / "run") == expected


def test_updates_that_were_not_averaged_do_not_change_the_result(three, tmp_path):
    federation = three()
    expected = _outcome(federation.embedded())
    rounds = federation.serve()
    next(rounds)
    federation.grid.spoil = _raise_interrupt_after(3)  # all sites have finished round 2, the server has not
    with pytest.raises(KeyboardInterrupt):
        next(rounds)
    federation.grid.spoil = lambda message, reply: reply
    for _ in federation.serve():
        pass
    assert _outcome(tmp_path / "run") == expected


def _raise_interrupt_after(count):
    left = [count]

    def spoil(message, reply):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return reply

    return spoil


def test_a_site_that_fails_drops_out_of_that_round_alone(three, tmp_path, caplog):
    federation = three()
    trouble = {("train", 2): lambda message, reply: Message(Error(8, "/secret/path"), reply_to=message)}
    federation.grid.spoil = _at_site(federation, "b", trouble)
    for _ in federation.serve():
        pass
    assert [row["dropped"] for row in _rows(tmp_path / "run")] == [[], [1], []]
    assert "Site b drops out of representation, round 2: its process ended." in caplog.text
    assert "secret" not in caplog.text


def test_the_reason_for_dropping_out_is_in_the_metrics(three, tmp_path):
    federation = three()
    federation.grid.spoil = _at_site(
        federation, "b", {("train", 1): lambda message, reply: Message(Error(5, ""), reply_to=message)}
    )
    next(federation.serve())
    row = _last_row(tmp_path / "run")
    assert row["reasons"] == {"1": "its connection was lost."}
    assert row["sites"] == {"0": "a", "1": "b", "2": "c"}


def test_a_site_that_lost_its_connection_is_greeted_before_its_next_task(three, tmp_path):
    federation, greeted = three(), []
    federation.options |= {"min_sites": 3, "wait": 60.0}
    trouble = {
        ("train", 1): lambda message, reply: Message(Error(5, ""), reply_to=message),
        ("query.hello", 2): lambda message, reply: greeted.append(message) or reply,
    }
    federation.grid.spoil = _at_site(federation, "b", trouble)
    for _ in federation.serve():
        pass
    assert [row["dropped"] for row in _rows(tmp_path / "run")] == [[1], [], []]
    assert len(greeted) == 1


def _at_site(federation, name, trouble):
    """Change replies of one site, by message type and its count."""
    node = next(node for node, config in federation.grid.nodes.items() if config["client"] == name)
    counts = {}

    def spoil(message, reply):
        if message.metadata.dst_node_id != node:
            return reply
        kind = message.metadata.message_type
        counts[kind] = counts.get(kind, 0) + 1
        return trouble.get((kind, counts[kind]), lambda message, reply: reply)(message, reply)

    return spoil


def test_a_manipulated_update_is_refused_with_its_reason(three, tmp_path):
    federation = three()

    def garbled(message, reply):
        del reply.content["weights"]
        return reply

    def poisoned(message, reply):
        facts, arrays = reply.content["facts"], reply.content["weights"]
        state = unpack_state(PackedState(facts["weights"], arrays["numbers"]))
        facts["weights"], arrays["numbers"] = pack_state(state | {"evil": torch.ones(2)})
        return reply

    federation.grid.spoil = _at_site(federation, "c", {("train", 1): garbled, ("train", 2): poisoned})
    list(islice(federation.serve(), 2))
    reasons = [row["refused"] for row in _rows(tmp_path / "run")]
    assert reasons[0] == [{"client": 2, "reason": "The message has no weights."}]
    assert reasons[1] == [{"client": 2, "reason": "It has 'evil', which is not shared."}]


def test_an_update_with_another_number_of_images_than_the_hello_is_refused(three, tmp_path, caplog):
    federation = three()
    federation.options |= {"min_sites": 3, "wait": 60.0}

    def claim(message, reply):
        reply.content["facts"]["samples"] = 10**6
        return reply

    federation.grid.spoil = _at_site(federation, "c", {("train", 1): claim})
    list(islice(federation.serve(), 2))
    first, second = _rows(tmp_path / "run")
    reported = "It reports 1000000 images, but it joined with 16."
    assert first["refused"] == [{"client": 2, "reason": reported}]
    assert (first["participants"], second["participants"]) == ([0, 1], [0, 1, 2])
    assert "Site c changed its images." in caplog.text


def test_a_site_that_does_not_reply_gets_no_task_until_its_late_reply(three, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedmcc.deployment.server.site_engine.TASK_TIMEOUTS", 1000
    )  # the task does not expire, however slow this machine is
    federation, held = three(), []
    federation.options["round_timeout"] = 0.3
    federation.grid.spoil = _at_site(
        federation, "a", {("train", 1): lambda message, reply: held.append(reply)}
    )
    rounds = federation.serve()
    next(rounds)
    next(rounds)  # no task was sent to it
    held_for = next(
        name for name, m in enumerate(federation.grid.sent, 1) if m.metadata.message_type == "train"
    )
    federation.grid.replies[f"message-{held_for}"] = held[0]
    next(rounds)
    reasons = [row["dropped"] for row in _rows(tmp_path / "run")]
    assert reasons == [[0], [0], []]


def test_a_site_that_reconnects_keeps_its_name_and_number(three, tmp_path):
    federation = three()
    rounds = federation.serve()
    next(rounds)
    federation.grid.away = {10}  # site c
    _wait_for_node_list()
    next(rounds)
    federation.grid.away = set()
    _wait_for_node_list()
    next(rounds)
    assert [row["participants"] for row in _rows(tmp_path / "run")] == [[0, 1, 2], [0, 1], [0, 1, 2]]


def _wait_for_node_list():
    """Wait until the server requests the list of nodes again."""
    time.sleep(1.1)


def test_a_site_that_lost_its_state_is_sent_the_whole_network_again(three, tmp_path, caplog):
    federation = three("fedmcc", clustering=LONGER)
    rounds = federation.serve()
    next(rounds), next(rounds)  # from here on the encoder is frozen and not sent
    for path in (tmp_path / "a").rglob("*.safetensors"):
        path.unlink()
    next(rounds), next(rounds)
    second, third, fourth = _rows(tmp_path / "run")[1:]
    assert (second["dropped"], third["dropped"], fourth["participants"]) == ([], [0], [0, 1, 2])
    assert (
        "Site a drops out of clustering, round 2: The site has lost its state after clustering, round 1"
        in caplog.text
    )
    assert fourth["bytes"]["0"] == second["bytes"]["0"] != fourth["bytes"]["1"]


def test_a_server_without_images_records_losses_and_no_scores(three, tmp_path):
    federation = three(evaluation={"at_server": False})
    for _ in federation.serve():
        pass
    run = tmp_path / "run"
    assert not (run / "assignments.csv").exists()
    assert not (run / "partition.npz").exists()
    assert json.loads((run / "scores.json").read_text())["images"] == 0
    assert all("alignment" not in row and row["loss"] > 0 for row in _rows(run))


def test_the_model_does_not_depend_on_scores_at_the_server(three, tmp_path):
    models = []
    for run, at_server in (("with", True), ("without", False)):
        federation = three(evaluation={"at_server": at_server})
        for _ in federation.serve(run):
            pass
        models.append((tmp_path / run / "checkpoints/final.safetensors").read_bytes())
    assert models[0] == models[1]


def test_sites_delete_the_state_of_a_finished_run_when_the_next_starts(three, tmp_path):
    federation = three()
    for _ in federation.serve("first"):
        pass
    next(federation.serve("second"))
    next(federation.serve("third"))  # the second is not finished
    left = {name: len(list((tmp_path / name).iterdir())) for name in "abc"}
    assert left == {"a": 2, "b": 2, "c": 2}


def test_the_seconds_of_a_round_are_accounted_for(three, tmp_path):
    next(three().serve())
    row = _last_row(tmp_path / "run")
    parts = [row[key] for key in ("waiting", "transport", "training")]
    assert min(parts) >= 0
    assert row["training"] > 0
    assert row["seconds"] / 2 < sum(parts) <= row["seconds"]  # the rest is work of the server


def test_a_round_without_any_reply_fails_and_keeps_the_run(three, tmp_path):
    federation = three()
    rounds = federation.serve()
    next(rounds)
    federation.grid.spoil = lambda message, reply: Message(Error(8, ""), reply_to=message)
    with pytest.raises(RoundFailedError, match=r"client 0 did not answer.* the same fedmcc server start$"):
        next(rounds)
    assert len(_rows(tmp_path / "run")) == 1


def test_a_run_started_in_one_process_cannot_be_resumed_with_sites(three):
    federation = three()
    federation.embedded()
    with pytest.raises(InputError, match="was started without sites"):
        next(federation.serve("embedded"))
