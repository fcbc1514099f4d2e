"""Orders, updates and hellos as Flower's records and back: pure functions.

A state travels as one array of its bare numbers, so that what is sent is what `bytes` of a message counts:
Flower asks for every array by itself at every hop, and a network has many small tensors. What comes from a
site is checked before it is believed: `UnreadableError` says what is wrong with it.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError

from fedmcc.deployment.messages import Greeting, Hello, SiteTask
from fedmcc.messages import StageRound, Task, Update
from fedmcc.numerics.state_dicts import State
from fedmcc.storage.safetensor_files import DTYPE_NAMES, encoded_chunks, from_bytes

FACTS, WEIGHTS, EXTRAS = "facts", "weights", "extras"
NUMBERS = "numbers"
BARE = "fedmcc.numbers"  # how they are written: what follows the header of a safetensors file
LONGEST = 200  # characters of a site's sentence that are believed

Value = TypeVar("Value")


class UnreadableError(Exception):
    """What is wrong with records, in a sentence."""


class Packed(NamedTuple):
    """A state in the two halves of a safetensors file: what there is, and its numbers."""

    header: bytes
    numbers: Array


Made = dict[tuple[tuple[str, int], ...], Packed]  # by names and identities of tensors


class Replied(NamedTuple):
    """An update, and the seconds that the site worked for it by its own clock."""

    update: Update
    seconds: float


class Failed(NamedTuple):
    """A site could not do what it was asked: why, and whether it has lost what it remembered."""

    reason: str
    forgot: bool = False


def pack_order(order: SiteTask, made: Made | None = None) -> RecordDict:
    """An order as records; orders packed with the same `made` share the arrays of the states they share."""
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


def unpack_order(records: RecordDict) -> SiteTask:
    """Undoes `pack_order`."""
    facts = _facts(records)
    base = None
    if "base-stage" in facts:
        base = StageRound(_get(facts, "base-stage", str), _get(facts, "base-round", int))
    task = Task(
        client=_get(facts, "client", int),
        stage=_get(facts, "stage", str),
        round=_get(facts, "round", int),
        weights=_state(records, WEIGHTS),
        extras=_state(records, EXTRAS),
        half=_get(facts, "half", bool),
    )
    run, config, fingerprint = (_get(facts, key, str) for key in ("run", "config", "fingerprint"))
    return SiteTask(run, config, fingerprint, base, task)


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
        return Failed(_sentence(facts, "failure"), facts.get("forgot") is True)
    seconds = _get(facts, "seconds", float)
    update = Update(
        client=client,
        stage=_sentence(facts, "stage"),
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
        return Failed(_sentence(facts, "failure"))
    hello = Hello(**{key: _get(facts, key, kind) for key, kind in Hello.__annotations__.items()})
    for key, text in (("name", hello.name), ("version", hello.version)):
        if not text or len(text) > LONGEST or not text.isprintable():
            raise UnreadableError(f"Its {key} is no {key}.")
    if min(hello.samples, hello.channels, hello.size) < 1:
        raise UnreadableError("It has no images.")
    return hello


def pack_greeting(greeting: Greeting) -> RecordDict:
    """A recipe, and the runs that are finished."""
    return RecordDict(
        {FACTS: ConfigRecord({"recipe": greeting.recipe, "finished": ",".join(greeting.finished)})}
    )


def unpack_greeting(records: RecordDict) -> Greeting:
    """Undoes `pack_greeting`."""
    facts = _facts(records)
    finished = _get(facts, "finished", str)
    return Greeting(_get(facts, "recipe", str), tuple(filter(None, finished.split(","))))


def pack_text(text: str) -> RecordDict:
    """A sentence."""
    return RecordDict({FACTS: ConfigRecord({"text": text})})


def unpack_text(records: RecordDict) -> str:
    """Undoes `pack_text`."""
    return _printable(_get(_facts(records), "text", str))


def pack_state(state: State) -> Packed:
    """The numbers of all tensors as one array, and what tells them apart."""
    header, *numbers = encoded_chunks(state)
    data = b"".join(numbers)
    return Packed(bytes(header), Array("uint8", (len(data),), BARE, data))


def unpack_state(packed: Packed) -> State:
    """Undoes `pack_state`."""
    if packed.numbers.stype != BARE:
        raise UnreadableError("Its numbers are written in no way that travels.")
    try:
        state = from_bytes(packed.header + packed.numbers.data)
    except (SafetensorError, KeyError, ValueError, RuntimeError):  # whose words could be the site's
        raise UnreadableError("Its tensors are damaged.") from None
    for name, value in state.items():
        if not name.isprintable():
            raise UnreadableError("The name of one of its tensors is no name.")
        if value.dtype not in DTYPE_NAMES:
            raise UnreadableError(f"Its {name:.80} is of no type that travels.")
        if value.dtype is torch.bool and value.numel() and value.view(torch.uint8).max() > 1:
            raise UnreadableError(f"Its {name:.80} is neither true nor false.")
    return state


def _records(facts: dict[str, Any], weights: State, extras: State, made: Made) -> RecordDict:
    arrays = {}
    for key, state in ((WEIGHTS, weights), (EXTRAS, extras)):
        place = tuple((name, id(value)) for name, value in state.items())
        if place not in made:
            made[place] = pack_state(state)
        facts[key] = made[place].header
        arrays[key] = ArrayRecord({NUMBERS: made[place].numbers})
    return RecordDict({FACTS: ConfigRecord(facts), **arrays})


def _facts(records: RecordDict) -> Mapping[str, Any]:
    facts = records.get(FACTS)
    if not isinstance(facts, ConfigRecord):
        raise UnreadableError("It says nothing about itself.")
    return facts


def _state(records: RecordDict, key: str) -> State:
    arrays = records.get(key)
    if not isinstance(arrays, ArrayRecord) or arrays.keys() != {NUMBERS}:
        raise UnreadableError(f"It has no {key}.")
    return unpack_state(Packed(_get(_facts(records), key, bytes), arrays[NUMBERS]))


def _sentence(facts: Mapping[str, Any], key: str) -> str:
    """What a site says, as it may enter a log: it can neither begin a line nor steer a terminal."""
    return _printable(_get(facts, key, str)[:LONGEST])[:LONGEST]


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _get(facts: Mapping[str, Any], key: str, kind: type[Value]) -> Value:
    value = facts.get(key)
    if type(value) is not kind:
        raise UnreadableError(f"Its {key} is missing or of a wrong kind.")
    return value
