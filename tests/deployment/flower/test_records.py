import json
from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedmcc.deployment.flower.records import (
    ENCODING,
    Failure,
    PackedState,
    Reply,
    UnreadableError,
    pack_failure,
    pack_greeting,
    pack_hello,
    pack_reply,
    pack_state,
    pack_task,
    pack_text,
    unpack_greeting,
    unpack_hello,
    unpack_reply,
    unpack_state,
    unpack_task,
    unpack_text,
)
from fedmcc.deployment.messages import Greeting, Hello, SiteTask
from fedmcc.messages import StageRound, Task, Update
from fedmcc.storage.safetensor_files import DTYPE_NAMES

WEIGHTS = {"net.weight": torch.arange(6.0).reshape(2, 3), "net.count": torch.tensor(7)}
EXTRAS = {"shares": torch.tensor([0.25, 0.75], dtype=torch.float64), "none": torch.empty(0, 4)}
TASK = Task(2, "joint", 5, WEIGHTS, EXTRAS, half=True)
UPDATE = Update(2, "joint", 5, 40, 0.5, WEIGHTS, EXTRAS)


def _same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (2, 3, 4, 4)])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_a_tensor_of_any_type_and_shape_is_unpacked_as_it_was_packed(dtype, shape):
    value = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    state = {"odd": torch.tensor([True]), "x": value}
    packed = pack_state(state)
    assert len(packed.numbers.data) == value.numel() * value.element_size() + 1
    assert _same(unpack_state(packed), state)


def test_an_empty_state_is_unpacked_as_it_was_packed():
    assert unpack_state(pack_state({})) == {}


def test_the_memory_format_of_a_tensor_is_not_sent():
    value = torch.arange(96.0).reshape(2, 3, 4, 4)
    other = value.to(memory_format=torch.channels_last)
    assert pack_state({"x": other}).numbers.data == pack_state({"x": value}).numbers.data


@pytest.mark.parametrize("base", [None, StageRound("joint", 4)])
def test_a_task_is_unpacked_as_it_was_packed(base):
    received = unpack_task(pack_task(SiteTask("run", "seed = 1", "abc", base, TASK)))
    assert received[:4] == ("run", "seed = 1", "abc", base)
    task = received.task
    assert (task.client, task.stage, task.round, task.half) == (2, "joint", 5, True)
    assert _same(task.weights, WEIGHTS)
    assert _same(task.extras, EXTRAS)


@pytest.mark.parametrize("loss", [None, 0.5])
def test_an_update_is_unpacked_with_the_client_number_of_the_server(loss):
    sent = Update(99, "joint", 5, 40, loss, WEIGHTS, EXTRAS)
    update, seconds = unpack_reply(pack_reply(Reply(sent, 1.5)), client=2)
    assert (update.client, update.stage, update.round, update.samples, update.loss) == (
        2,
        "joint",
        5,
        40,
        loss,
    )
    assert seconds == 1.5
    assert _same(update.weights, WEIGHTS)
    assert _same(update.extras, EXTRAS)


def test_the_bytes_of_a_message_are_those_of_its_arrays():
    records = pack_task(SiteTask("run", "", "", None, TASK))
    arrays = [array for record in records.array_records.values() for array in record.values()]
    assert sum(len(array.data) for array in arrays) == TASK.bytes == UPDATE.bytes


def test_tasks_share_the_array_of_a_state_they_share():
    packed, other = {}, replace(TASK, weights={"net.weight": WEIGHTS["net.weight"]})
    one, two, three = (pack_task(SiteTask("run", "", "", None, task), packed) for task in (TASK, TASK, other))
    assert one["weights"]["numbers"].data is two["weights"]["numbers"].data
    assert three["weights"]["numbers"].data == WEIGHTS["net.weight"].numpy().tobytes()


def test_greetings_hellos_failures_and_texts_are_unpacked_as_they_were_packed():
    hello = Hello("site-a", 40, 1, 8, "0.1.0", "abc")
    assert unpack_hello(pack_hello(hello)) == hello
    failure = Failure("it is lost.", forgot=True)
    assert unpack_reply(pack_failure(failure), client=0) == failure
    assert unpack_text(pack_text("Go away.")) == "Go away."
    for finished in ((), ("abc", "def")):
        assert unpack_greeting(pack_greeting(Greeting("seed = 1", finished))) == ("seed = 1", finished)


def _hostile(kind, shape, data, stype=ENCODING, end=None):
    """A manipulated message with one tensor."""
    entry = {"dtype": kind, "shape": shape, "data_offsets": [0, len(data) if end is None else end]}
    text = json.dumps({"net.weight": entry}).encode()
    return PackedState(len(text).to_bytes(8, "little") + text, Array("uint8", (len(data),), stype, data))


HOSTILE = {
    "a type that does not exist": _hostile("C7", [1], b"12345678"),
    "a type that networks do not have": _hostile("F8_E4M3", [4], b"1234"),
    "a pickle": _hostile("F32", [2], b"\x80\x04N.", stype="numpy.ndarray"),
    "too few bytes": _hostile("F32", [2, 2], b"1234"),
    "too many bytes": _hostile("F32", [1], b"12345678"),
    "more bytes than it says": _hostile("F32", [1], b"12345678", end=4),
    "an end beyond the end": _hostile("F32", [2], b"1234", end=8),
    "a negative length": _hostile("F32", [-1, -1], b"1234"),
    "lengths beyond all memory": _hostile("F32", [2**62, 2**62], b""),
    "a boolean that is 7": _hostile("BOOL", [1], b"\x07"),
    "no header": PackedState(b"", Array("uint8", (0,), ENCODING, b"")),
    "a header without an end": PackedState(b"\xff" * 8, Array("uint8", (0,), ENCODING, b"")),
    "a header of garbage": PackedState(b"\x04\0\0\0\0\0\0\0{}}}", Array("uint8", (0,), ENCODING, b"")),
}


@pytest.mark.parametrize("packed", HOSTILE.values(), ids=HOSTILE)
def test_a_manipulated_state_is_refused(packed):
    records = pack_reply(Reply(UPDATE, 1.0))
    records["facts"]["weights"] = packed.header
    records["weights"] = ArrayRecord({"numbers": packed.numbers})
    with pytest.raises(UnreadableError, match=r"^The tensor.*\.$"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize("names", [(), ("other",), ("numbers", "more")])
def test_arrays_of_other_names_are_refused(names):
    records = pack_reply(Reply(UPDATE, 1.0))
    records["weights"] = ArrayRecord(dict.fromkeys(names, records["weights"]["numbers"]))
    with pytest.raises(UnreadableError, match=r"^The message has no weights\.$"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize("key", ["stage", "round", "samples", "loss", "seconds"])
@pytest.mark.parametrize("value", [[1, 2], b"garbage", True])
def test_a_fact_of_the_wrong_type_is_refused(key, value):
    records = pack_reply(Reply(UPDATE, 1.0))
    records["facts"][key] = value
    with pytest.raises(UnreadableError, match=f"^The fact {key} is missing or has the wrong type"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize("missing", ["facts", "weights", "extras"])
def test_a_missing_record_is_refused(missing):
    records = pack_reply(Reply(UPDATE, 1.0))
    del records[missing]
    with pytest.raises(UnreadableError, match=rf"^The message has no {missing}\.$"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1\n2"},
        {"version": "9" * 999},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 999},
        {"samples": 0},
        {"samples": 2**53},
        {"channels": 2**33},
        {"channels": -1},
        {"size": 2**20},
        {"fingerprint": "f" * 999},
        {"fingerprint": "\u202e"},
    ],
)
def test_an_invalid_hello_is_refused(change):
    hello = Hello("site-a", 40, 1, 8, "0.1.0", "abc")._replace(**change)
    with pytest.raises(UnreadableError):
        unpack_hello(pack_hello(hello))


FORGED = "no.\n2030-01-01 00:00:00 Site b \x1b[2K is there: naïve\u2028\ud800"
SHOWN = r"no.\n2030-01-01 00:00:00 Site b \x1b[2K is there: naïve\u2028\ud800"


def test_a_site_can_neither_forge_a_log_line_nor_send_terminal_codes():
    failure = pack_failure(Failure(FORGED))
    assert unpack_reply(failure, client=0).reason == unpack_hello(failure).reason == SHOWN
    assert unpack_text(pack_text(FORGED)) == SHOWN
    assert unpack_reply(pack_reply(Reply(replace(UPDATE, stage=FORGED), 1.0)), client=0).update.stage == SHOWN
    with pytest.raises(UnreadableError, match=r"^A tensor has an unprintable name\.$"):
        unpack_reply(pack_reply(Reply(replace(UPDATE, weights={"a\nb": torch.ones(1)}), 1.0)), client=0)


def test_long_texts_are_cut_and_infinite_times_ignored():
    for character in "x\n":
        assert len(unpack_reply(pack_failure(Failure(character * 10_000)), client=0).reason) == 200
    assert unpack_reply(pack_reply(Reply(UPDATE, float("inf"))), client=0).seconds == 0
    assert unpack_reply(RecordDict({"facts": ConfigRecord({"failure": "a"})}), client=0) == Failure("a")
