import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedmcc.engines.flower.records import (
    BARE,
    DTYPES,
    Failed,
    Replied,
    UnreadableError,
    from_array,
    pack_failure,
    pack_hello,
    pack_order,
    pack_reply,
    pack_text,
    to_array,
    unpack_hello,
    unpack_order,
    unpack_reply,
    unpack_text,
)
from fedmcc.messages import Hello, Moment, Order, Task, Update

WEIGHTS = {"net.weight": torch.arange(6.0).reshape(2, 3), "net.count": torch.tensor(7)}
EXTRAS = {"shares": torch.tensor([0.25, 0.75], dtype=torch.float64), "none": torch.empty(0, 4)}
TASK = Task(2, "joint", 5, WEIGHTS, EXTRAS, half=True)
UPDATE = Update(2, "joint", 5, 40, 0.5, WEIGHTS, EXTRAS)


def _same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (2, 3, 4, 4)])
@pytest.mark.parametrize("dtype", DTYPES.values())
def test_a_tensor_of_any_type_and_shape_survives_the_way(dtype, shape):
    value = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    array = to_array(value)
    assert len(array.data) == value.numel() * value.element_size()
    assert _same({"x": from_array("x", array)}, {"x": value})


def test_the_memory_format_of_a_tensor_does_not_travel():
    value = torch.arange(96.0).reshape(2, 3, 4, 4)
    assert to_array(value.to(memory_format=torch.channels_last)).data == to_array(value).data


@pytest.mark.parametrize("base", [None, Moment("joint", 4)])
def test_an_order_survives_the_way(base):
    order = unpack_order(pack_order(Order("run", "seed = 1", "abc", base, TASK)))
    assert order[:4] == ("run", "seed = 1", "abc", base)
    assert (order.task.client, order.task.stage, order.task.round, order.task.half) == (2, "joint", 5, True)
    assert _same(order.task.weights, WEIGHTS)
    assert _same(order.task.extras, EXTRAS)


@pytest.mark.parametrize("loss", [None, 0.5])
def test_an_update_survives_the_way_under_the_number_that_the_server_knows(loss):
    sent = Update(99, "joint", 5, 40, loss, WEIGHTS, EXTRAS)
    update, seconds = unpack_reply(pack_reply(Replied(sent, 1.5)), client=2)
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
    records = pack_order(Order("run", "", "", None, TASK))
    arrays = [array for record in records.array_records.values() for array in record.values()]
    assert sum(len(array.data) for array in arrays) == TASK.bytes == UPDATE.bytes


def test_orders_share_the_arrays_of_the_tensors_they_share():
    made = {}
    orders = [pack_order(Order("run", "", "", None, TASK), made) for _ in range(2)]
    assert orders[0]["weights"]["net.weight"].data is orders[1]["weights"]["net.weight"].data


def test_hellos_failures_and_texts_survive_the_way():
    hello = Hello("site-a", 40, 1, 8, "0.1.0", "abc")
    assert unpack_hello(pack_hello(hello)) == hello
    failed = Failed("it is lost.", forgot=True)
    assert unpack_reply(pack_failure(failed), client=0) == failed
    assert unpack_text(pack_text("seed = 1\n")) == "seed = 1\n"


HOSTILE_ARRAYS = {
    "a type that does not exist": Array("complex7", (2,), BARE, b"12345678"),
    "a pickle": Array("float32", (2,), "numpy.ndarray", b"\x80\x04N."),
    "too few bytes": Array("float32", (2, 2), BARE, b"1234"),
    "too many bytes": Array("float32", (1,), BARE, b"12345678"),
    "a negative length": Array("float32", (-1, -1), BARE, b"1234"),
    "lengths beyond all memory": Array("float32", (2**62, 2**62), BARE, b""),
    "a truth that is 7": Array("bool", (1,), BARE, b"\x07"),
}


@pytest.mark.parametrize("array", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_a_hostile_array_is_refused_in_a_sentence(array):
    records = pack_reply(Replied(UPDATE, 1.0))
    records["weights"] = ArrayRecord({"net.weight": array})
    with pytest.raises(UnreadableError, match=r"^Its net\.weight .*\.$"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize("key", ["stage", "round", "samples", "loss", "seconds"])
@pytest.mark.parametrize("value", [[1, 2], b"garbage", True])
def test_a_fact_of_a_wrong_kind_is_refused_in_a_sentence(key, value):
    records = pack_reply(Replied(UPDATE, 1.0))
    records["facts"][key] = value
    with pytest.raises(UnreadableError, match=f"^Its {key} is missing or of a wrong kind"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize("missing", ["facts", "weights", "extras"])
def test_a_record_that_is_missing_is_refused_in_a_sentence(missing):
    records = pack_reply(Replied(UPDATE, 1.0))
    del records[missing]
    with pytest.raises(UnreadableError, match=r"^It .*\.$"):
        unpack_reply(records, client=2)


@pytest.mark.parametrize("change", [{"name": ""}, {"name": "a\nb"}, {"name": "x" * 999}, {"samples": 0}])
def test_a_hello_that_makes_no_sense_is_refused(change):
    hello = Hello("site-a", 40, 1, 8, "0.1.0", "abc")._replace(**change)
    with pytest.raises(UnreadableError):
        unpack_hello(pack_hello(hello))


def test_a_site_cannot_lengthen_the_log_nor_the_clock():
    assert len(unpack_reply(pack_failure(Failed("x" * 10_000)), client=0).reason) == 200
    assert unpack_reply(pack_reply(Replied(UPDATE, float("inf"))), client=0).seconds == 0
    assert unpack_reply(RecordDict({"facts": ConfigRecord({"failure": "a"})}), client=0) == Failed("a")
