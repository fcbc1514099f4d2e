"""Orders, updates and hellos as Flower's records and back: pure functions.

Tensors travel as their bare numbers, so that what is sent is what `bytes` of a message counts. What comes
from a site is checked before it is believed: `UnreadableError` says what is wrong with it.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedmcc.messages import Hello, Moment, Order, Task, Update
from fedmcc.states import State

FACTS, WEIGHTS, EXTRAS = "facts", "weights", "extras"
BARE = "fedmcc.numbers"  # how tensors are written: row after row, little end first
LONGEST = 200  # characters of a site's sentence that are believed
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}

Value = TypeVar("Value")


class UnreadableError(Exception):
    """What is wrong with records, in a sentence."""


class Replied(NamedTuple):
    """An update, and the seconds that the site worked for it by its own clock."""

    update: Update
    seconds: float


class Failed(NamedTuple):
    """A site could not do what it was asked: why, and whether it has lost what it remembered."""

    reason: str
    forgot: bool = False


def pack_order(order: Order, made: dict[int, Array] | None = None) -> RecordDict:
    """An order as records; orders packed with the same `made` share the arrays of the tensors they share."""
    task = order.task
    facts: dict[str, Any] = {
        "run": order.run,
        "config": order.config,
        "fingerprint": order.fingerprint,
        "client": task.client,
        "stage": task.stage,
        "round": task.round,
        "half": task.half,
    }
    if order.base is not None:
        facts |= {"base-stage": order.base.stage, "base-round": order.base.round}
    return _records(facts, task.weights, task.extras, {} if made is None else made)


def unpack_order(records: RecordDict) -> Order:
    """Undoes `pack_order`."""
    facts = _facts(records)
    base = None
    if "base-stage" in facts:
        base = Moment(_get(facts, "base-stage", str), _get(facts, "base-round", int))
    task = Task(
        client=_get(facts, "client", int),
        stage=_get(facts, "stage", str),
        round=_get(facts, "round", int),
        weights=_state(records, WEIGHTS),
        extras=_state(records, EXTRAS),
        half=_get(facts, "half", bool),
    )
    run, config, fingerprint = (_get(facts, key, str) for key in ("run", "config", "fingerprint"))
    return Order(run, config, fingerprint, base, task)


def pack_reply(replied: Replied) -> RecordDict:
    """An update as records; who sends it is not for the sender to say."""
    update = replied.update
    facts: dict[str, Any] = {
        "stage": update.stage,
        "round": update.round,
        "samples": update.samples,
        "seconds": replied.seconds,
    }
    if update.loss is not None:
        facts["loss"] = update.loss
    return _records(facts, update.weights, update.extras, {})


def unpack_reply(records: RecordDict, client: int) -> Replied | Failed:
    """What this client answered."""
    facts = _facts(records)
    if "failure" in facts:
        return Failed(_get(facts, "failure", str)[:LONGEST], facts.get("forgot") is True)
    seconds = _get(facts, "seconds", float)
    update = Update(
        client=client,
        stage=_get(facts, "stage", str),
        round=_get(facts, "round", int),
        samples=_get(facts, "samples", int),
        loss=_get(facts, "loss", float) if "loss" in facts else None,
        weights=_state(records, WEIGHTS),
        extras=_state(records, EXTRAS),
    )
    return Replied(update, max(0.0, seconds) if math.isfinite(seconds) else 0.0)


def pack_failure(failed: Failed) -> RecordDict:
    """Why there is no update."""
    return RecordDict({FACTS: ConfigRecord({"failure": failed.reason, "forgot": failed.forgot})})


def pack_hello(hello: Hello) -> RecordDict:
    """An introduction as records."""
    return RecordDict({FACTS: ConfigRecord(hello._asdict())})


def unpack_hello(records: RecordDict) -> Hello | Failed:
    """Who a site says that it is."""
    facts = _facts(records)
    if "failure" in facts:
        return Failed(_get(facts, "failure", str)[:LONGEST])
    hello = Hello(**{key: _get(facts, key, kind) for key, kind in Hello.__annotations__.items()})
    if not hello.name or len(hello.name) > LONGEST or not hello.name.isprintable():
        raise UnreadableError("Its name is no name.")
    if min(hello.samples, hello.channels, hello.size) < 1:
        raise UnreadableError("It has no images.")
    return hello


def pack_text(text: str) -> RecordDict:
    """A recipe or a sentence."""
    return RecordDict({FACTS: ConfigRecord({"text": text})})


def unpack_text(records: RecordDict) -> str:
    """Undoes `pack_text`."""
    return _get(_facts(records), "text", str)


def to_array(value: Tensor) -> Array:
    """The numbers of a tensor and nothing else."""
    flat = value.detach().to("cpu").contiguous().flatten()
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return Array(str(value.dtype).removeprefix("torch."), tuple(value.shape), BARE, data)


def from_array(name: str, array: Array) -> Tensor:
    """Undoes `to_array`; the length must be that of the shape."""
    dtype = DTYPES.get(array.dtype)
    if dtype is None or array.stype != BARE:
        raise UnreadableError(f"Its {name:.80} is of no type that travels.")
    if any(length < 0 for length in array.shape):
        raise UnreadableError(f"Its {name:.80} has a negative length.")
    if len(array.data) != math.prod(array.shape) * dtype.itemsize:
        raise UnreadableError(f"Its {name:.80} has {len(array.data)} bytes, which do not fill its shape.")
    if not array.data:
        return torch.empty(array.shape, dtype=dtype)
    numbers = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
    if dtype is torch.bool and numbers.max() > 1:
        raise UnreadableError(f"Its {name:.80} is neither true nor false.")
    return numbers.view(dtype).reshape(array.shape)


def _records(facts: dict[str, Any], weights: State, extras: State, made: dict[int, Array]) -> RecordDict:
    states = {WEIGHTS: weights, EXTRAS: extras}
    for value in (*weights.values(), *extras.values()):
        if id(value) not in made:
            made[id(value)] = to_array(value)
    arrays = {
        key: ArrayRecord({name: made[id(value)] for name, value in state.items()})
        for key, state in states.items()
    }
    return RecordDict({FACTS: ConfigRecord(facts), **arrays})


def _facts(records: RecordDict) -> Mapping[str, Any]:
    facts = records.get(FACTS)
    if not isinstance(facts, ConfigRecord):
        raise UnreadableError("It says nothing about itself.")
    return facts


def _state(records: RecordDict, key: str) -> State:
    arrays = records.get(key)
    if not isinstance(arrays, ArrayRecord):
        raise UnreadableError(f"It has no {key}.")
    return {name: from_array(name, array) for name, array in arrays.items()}


def _get(facts: Mapping[str, Any], key: str, kind: type[Value]) -> Value:
    value = facts.get(key)
    if type(value) is not kind:
        raise UnreadableError(f"Its {key} is missing or of a wrong kind.")
    return value
