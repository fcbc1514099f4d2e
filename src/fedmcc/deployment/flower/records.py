"""Converts tasks, replies and hellos to Flower's records and back: pure functions.

A state is sent as one array with the numbers of all its tensors: Flower requests each array separately, and a
network has many small tensors. The header is sent as a fact, so that `bytes` of a message counts exactly the
arrays. Records from a site are checked; `UnreadableError` names the fault.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError

from fedmcc.deployment.messages import Greeting, Hello, SiteTask
from fedmcc.federation.update_checks import MAX_SAMPLES
from fedmcc.messages import StageRound, Task, Update
from fedmcc.numerics.state_dicts import State
from fedmcc.storage.safetensor_files import DTYPE_NAMES, encoded_chunks, from_bytes

log = logging.getLogger(__name__)

FACTS, WEIGHTS, EXTRAS, SIGNATURE, PACKET = "facts", "weights", "extras", "signature", "packet"
RECORD_NAMES = frozenset({FACTS, WEIGHTS, EXTRAS, SIGNATURE, PACKET})  # others are refused
NUMBERS = "numbers"
ENCODING = "fedmcc.numbers"  # of arrays: the content of a safetensors file after its header
MAX_TEXT = 200  # characters of a text from a site; the rest is cut off
HELLO_LIMITS = {"samples": MAX_SAMPLES, "channels": 1024, "size": 2**14}  # a network is built for them
MASKING = "masking"  # the fact of a task whose update must be masked

Value = TypeVar("Value")


class UnreadableError(Exception):
    """Records cannot be read; the message names the fault."""


@contextmanager
def guard() -> Iterator[None]:
    """Make every error that a message of a site causes an `UnreadableError`."""
    try:
        yield
    except UnreadableError:
        raise
    except Exception as error:
        log.debug("A message cannot be read.", exc_info=True)
        raise UnreadableError(f"The message is malformed ({type(error).__name__}).") from None


class PackedState(NamedTuple):
    """A state as the two parts of a safetensors file: the header, and the numbers of all tensors."""

    header: bytes
    numbers: Array


PackedStates = dict[tuple[tuple[str, int], ...], PackedState]  # by the names and ids of the tensors


class Reply(NamedTuple):
    """An update, and the seconds of work that the site measured for it."""

    update: Update
    seconds: float


class Failure(NamedTuple):
    """The reason why a site sends no update, and whether it has lost its state."""

    reason: str
    forgot: bool = False


def pack_task(site_task: SiteTask, packed: PackedStates | None = None) -> RecordDict:
    """Convert a task to records; `packed` caches states: tasks with the same tensors then share an array."""
    task = site_task.task
    facts: dict[str, Any] = {
        "run": site_task.run,
        "config": site_task.config,
        "fingerprint": site_task.fingerprint,
        "client": task.client,
        "stage": task.stage,
        "round": task.round,
        "half": task.half,
    }
    if site_task.base is not None:
        facts |= {"base-stage": site_task.base.stage, "base-round": site_task.base.round}
    if site_task.masking is not None:
        facts[MASKING] = site_task.masking
    return _records(facts, task.weights, task.extras, {} if packed is None else packed)


def unpack_task(records: RecordDict) -> SiteTask:
    """Convert records of `pack_task` back to the task."""
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
    masking = _get(facts, MASKING, str) if MASKING in facts else None
    return SiteTask(run, config, fingerprint, base, task, masking)


def pack_reply(reply: Reply) -> RecordDict:
    """Convert a reply to records, without the client's number: the server assigns it by the connection."""
    update = reply.update
    facts: dict[str, Any] = {
        "stage": update.stage,
        "round": update.round,
        "samples": update.samples,
        "seconds": reply.seconds,
    }
    if update.loss is not None:
        facts["loss"] = update.loss
    return _records(facts, update.weights, update.extras, {})


@guard()
def unpack_reply(records: RecordDict, client: int) -> Reply | Failure:
    """Convert records of `pack_reply` or `pack_failure` back to the answer of this client."""
    facts = _facts(records)
    if failure := read_failure(records):
        return failure
    seconds = _get(facts, "seconds", float)
    update = Update(
        client=client,
        stage=_text(facts, "stage"),
        round=_get(facts, "round", int),
        samples=_get(facts, "samples", int),
        loss=_get(facts, "loss", float) if "loss" in facts else None,
        weights=_state(records, WEIGHTS),
        extras=_state(records, EXTRAS),
    )
    return Reply(update, max(0.0, seconds) if math.isfinite(seconds) else 0.0)


def read_failure(records: RecordDict) -> Failure | None:
    """The failure in a reply; None if it has another content."""
    facts = _facts(records)
    return Failure(_text(facts, "failure"), facts.get("forgot") is True) if "failure" in facts else None


def read_fact(records: RecordDict, key: str, expected: type[Value]) -> Value:
    """A fact of this type; raises UnreadableError if there is none."""
    return _get(_facts(records), key, expected)


def pack_failure(failure: Failure) -> RecordDict:
    """Convert a failure to records."""
    return RecordDict({FACTS: ConfigRecord({"failure": failure.reason, "forgot": failure.forgot})})


def pack_hello(hello: Hello) -> RecordDict:
    """Convert a hello to records."""
    return RecordDict({FACTS: ConfigRecord(hello._asdict())})


@guard()
def unpack_hello(records: RecordDict) -> Hello | Failure:
    """Convert records of `pack_hello` or `pack_failure` back, and check the values."""
    facts = _facts(records)
    if failure := read_failure(records):
        return failure
    hello = Hello(**{key: _get(facts, key, expected) for key, expected in Hello.__annotations__.items()})
    for key in ("name", "version", "fingerprint"):
        text = getattr(hello, key)
        if not text or len(text) > MAX_TEXT or not text.isprintable():
            raise UnreadableError(f"Invalid {key}: it is empty, too long or not printable.")
    if min(hello.samples, hello.channels, hello.size) < 1:
        raise UnreadableError("The site has no images.")
    for key, most in HELLO_LIMITS.items():
        if (value := getattr(hello, key)) > most:
            raise UnreadableError(f"Invalid {key}: {value} is above the limit of {most}.")
    return hello


def pack_greeting(greeting: Greeting) -> RecordDict:
    """Convert a greeting to records."""
    return RecordDict(
        {FACTS: ConfigRecord({"recipe": greeting.recipe, "finished": ",".join(greeting.finished)})}
    )


def unpack_greeting(records: RecordDict) -> Greeting:
    """Convert records of `pack_greeting` back to the greeting."""
    facts = _facts(records)
    finished = _get(facts, "finished", str)
    return Greeting(_get(facts, "recipe", str), tuple(filter(None, finished.split(","))))


def pack_text(text: str) -> RecordDict:
    """Convert a text to records."""
    return RecordDict({FACTS: ConfigRecord({"text": text})})


def unpack_text(records: RecordDict) -> str:
    """Convert records of `pack_text` back to the text, with unprintable characters escaped."""
    return _printable(_get(_facts(records), "text", str))


def pack_state(state: State) -> PackedState:
    """Pack the numbers of all tensors into one array, and names, types and shapes into a header."""
    header, *numbers = encoded_chunks(state)
    data = b"".join(numbers)
    return PackedState(bytes(header), Array("uint8", (len(data),), ENCODING, data))


def unpack_state(packed: PackedState) -> State:
    """Convert the result of `pack_state` back to the state, and check it."""
    if packed.numbers.stype != ENCODING:
        raise UnreadableError("The tensors have an unsupported encoding.")
    try:
        state = from_bytes(packed.header + packed.numbers.data)
    except (SafetensorError, KeyError, ValueError, RuntimeError):  # their messages may quote the site
        raise UnreadableError("The tensors are damaged.") from None
    for name, value in state.items():
        if not name.isprintable():
            raise UnreadableError("A tensor has an unprintable name.")
        if value.dtype not in DTYPE_NAMES:
            raise UnreadableError(f"The tensor {name:.80} has an unsupported data type.")
        if value.dtype is torch.bool and value.numel() and value.view(torch.uint8).max() > 1:
            raise UnreadableError(f"The tensor {name:.80} is boolean, but not all its values are 0 or 1.")
    return state


def _records(facts: dict[str, Any], weights: State, extras: State, packed: PackedStates) -> RecordDict:
    arrays = {}
    for key, state in ((WEIGHTS, weights), (EXTRAS, extras)):
        tensors = tuple((name, id(value)) for name, value in state.items())
        if tensors not in packed:
            packed[tensors] = pack_state(state)
        facts[key] = packed[tensors].header
        arrays[key] = ArrayRecord({NUMBERS: packed[tensors].numbers})
    return RecordDict({FACTS: ConfigRecord(facts), **arrays})


def _facts(records: RecordDict) -> Mapping[str, Any]:
    facts = records.get(FACTS)
    if not isinstance(facts, ConfigRecord):
        raise UnreadableError("The message has no facts.")
    return facts


def _state(records: RecordDict, key: str) -> State:
    arrays = records.get(key)
    if not isinstance(arrays, ArrayRecord) or arrays.keys() != {NUMBERS}:
        raise UnreadableError(f"The message has no {key}.")
    return unpack_state(PackedState(_get(_facts(records), key, bytes), arrays[NUMBERS]))


def _text(facts: Mapping[str, Any], key: str) -> str:
    """A text from a site, safe for logs: short, on one line, and without control characters."""
    return _printable(_get(facts, key, str)[:MAX_TEXT])[:MAX_TEXT]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _get(facts: Mapping[str, Any], key: str, expected: type[Value]) -> Value:
    value = facts.get(key)
    if type(value) is not expected:
        raise UnreadableError(f"The fact {key} is missing or has the wrong type.")
    return value
