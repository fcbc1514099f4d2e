"""Random records in place of a site's reply or hello: each is refused, or gives a finite model."""

import json
import math
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedmcc.data.synthetic import Synthetic
from fedmcc.deployment.flower import records as wire
from fedmcc.deployment.messages import Hello
from fedmcc.federation.update_checks import MAX_LOSS, Limits, checker_for, value_error
from fedmcc.messages import Task, Update
from fedmcc.numerics.state_dicts import detached, equal_states, select
from fedmcc.views import preset

IMAGES, HOSTILE = 24, 1
FAST, SLOW = 12, int(os.environ.get("FEDMCC_FUZZ", "100"))  # examples of each stage; over 10,000 with 1000
EXPENSIVE = {"informative clustering prototypes": 500, "informative clustering clusters": 300}  # 20 ms each
STAGES = {  # number of stages that get many random replies
    "fedmcc method": 1,
    "informative clustering": 3,
    "mcc clustering": 1,
    "kmeans clustering": 2,
}
HELLO = Hello("site-a", 40, 1, 8, "0.1.0", "abc")

NUMBERS = st.sampled_from([0, 1, -1, 7, 23, 25, 2**31, 2**53, 2**62, -(2**63), 2**63 - 1])
REALS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1e-40, 1e4, 7e4, 1e18, 1e30, -3e38, 1.7e308, math.nan, math.inf]
)
VALUES = st.one_of(
    NUMBERS,
    REALS,
    st.booleans(),
    st.text(max_size=5),
    st.sampled_from(["", "\n\x1b[2K", "\u202e", "x" * 5000, "representation"]),
    st.binary(max_size=16),
    st.lists(NUMBERS, max_size=3),
)
PARTS = st.sampled_from([wire.WEIGHTS, wire.EXTRAS])
FACT_NAMES = [
    "stage",
    "round",
    "samples",
    "loss",
    "seconds",
    "weights",
    "extras",
    "failure",
    "forgot",
    "more",
]
FACT_NAMES += list(Hello._fields)
PLACES = st.integers(0, 999)
TENSOR_CHANGES = {
    "fill": lambda value, number, place: torch.full_like(value.double(), number).to(value.dtype),
    "one": lambda value, number, place: _with_one(value, number, place),
    "scale": lambda value, number, place: (value.double() * number).to(value.dtype),
    "shift": lambda value, number, place: (value.double() + number).to(value.dtype),
    "double": lambda value, number, place: value.double(),
    "half": lambda value, number, place: value.half(),
    "int": lambda value, number, place: torch.zeros_like(value, dtype=torch.int64),
    "bool": lambda value, number, place: torch.zeros_like(value, dtype=torch.bool),
    "deeper": lambda value, number, place: value[None],
    "empty": lambda value, number, place: value.reshape(-1)[:0],
    "longer": lambda value, number, place: value.repeat([1 + place % 20, *[1] * max(0, value.dim() - 1)]),
    "shuffled": lambda value, number, place: value.flatten().roll(place).reshape(value.shape),
    "noisy": lambda value, number, place: (
        value + 0.1 * _noise(value, place) if value.is_floating_point() else value
    ),
    "rows": lambda value, number, place: value.flip(0) if value.dim() else value,
}
HEADER_CHANGES = ("truncate", "garbage", "dtype", "shape", "offset", "more", "twice", "flip")
CHANGES = st.one_of(
    st.tuples(st.just("tensor"), PARTS, PLACES, st.sampled_from(sorted(TENSOR_CHANGES)), REALS),
    st.tuples(st.just("names"), PARTS, PLACES, st.sampled_from(["add", "drop", "rename"]), VALUES),
    st.tuples(st.just("fact"), st.sampled_from(FACT_NAMES), st.booleans(), VALUES),
    st.tuples(st.just("header"), PARTS, PLACES, st.sampled_from(HEADER_CHANGES)),
    st.tuples(st.just("numbers"), PARTS, PLACES, st.sampled_from(["cut", "more", "type", "flip"])),
    st.tuples(st.just("record"), st.sampled_from([wire.FACTS, wire.WEIGHTS, wire.EXTRAS]), st.booleans()),
)


def _with_one(value, number, place):
    changed = value.double().flatten().clone()
    changed[place % len(changed) if len(changed) else slice(0)] = number
    return changed.reshape(value.shape).to(value.dtype)


def _noise(value, place):
    return torch.randn(value.shape, generator=torch.Generator().manual_seed(place)).to(value.dtype)


def _changed_state(state, changes):
    """The state with its tensors changed, added, dropped or renamed."""
    for kind, _, place, change, value in changes:
        names = sorted(state)
        name = names[place % len(names)] if names else ""
        if kind == "tensor" and name:
            state = {**state, name: TENSOR_CHANGES[change](state[name], value, place)}
        elif kind == "names" and change == "add":
            state = {**state, str(value)[:90].encode(errors="ignore").decode(): torch.zeros(place % 3)}
        elif kind == "names" and name:
            rest = {key: each for key, each in state.items() if key != name}
            state = rest if change == "drop" else {**rest, f"{name}{place}": state[name]}
    return state


def _change_header(records, part, place, change):
    header = bytearray(records[wire.FACTS][part])
    entries = json.loads(header[8:])
    if change == "truncate":
        header = header[: place % len(header)]
    elif change == "garbage":
        header = bytearray(bytes(place % 40))
    elif change == "flip":
        header[place % len(header)] ^= 1 << place % 8
    elif entries or change == "more":
        name = sorted(entries)[place % len(entries)] if entries else "x"
        entry = dict(entries.get(name, {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}))
        values = {"dtype": ["F64", "C7", "BOOL", 3], "shape": [[2**62, 4], [-1], [], "a"]}
        values["data_offsets"] = [[0, 2**60], [-4, 0], [8, 4], [0]]
        key = {"offset": "data_offsets", "more": "shape", "twice": "dtype"}.get(change, change)
        entry[key] = values[key][place % 4]
        text = json.dumps({**entries, ("more" if change == "more" else name): entry})
        text = f'{{"{name}":{json.dumps(entry)},{text[1:]}' if change == "twice" else text
        header = bytearray(len(text.encode()).to_bytes(8, "little") + text.encode())
    records[wire.FACTS][part] = bytes(header)


def _change_numbers(records, part, place, change):
    data = bytearray(records[part][wire.NUMBERS].data)
    stype = "numpy.ndarray" if change == "type" else wire.ENCODING
    if change == "more":
        data += bytes(place)
    elif data and change == "flip":
        data[place * 131 % len(data)] ^= 1 << place % 8
    elif data and change == "cut":
        data = data[: place % len(data)]
    records[part] = ArrayRecord({wire.NUMBERS: Array("uint8", (len(data),), stype, bytes(data))})


def _change_records(records, changes):
    """Change facts, headers, arrays or whole records; what an earlier change removed is not changed again."""
    for kind, key, *rest in changes:
        try:
            if kind == "fact" and rest[0]:
                del records[wire.FACTS][key]
            elif kind == "fact":
                records[wire.FACTS][key] = rest[1]
            elif kind == "header":
                _change_header(records, key, *rest)
            elif kind == "numbers":
                _change_numbers(records, key, *rest)
            elif kind == "record" and rest[0]:
                del records[key]
            elif kind == "record":
                records[key] = ConfigRecord() if key != wire.FACTS else ArrayRecord()
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return records


class Target:
    """A stage with two honest updates, of which the second is changed before it arrives."""

    def __init__(self, case):
        net, self.stage = case.build("batch")
        self.model = detached(net.state_dict())
        weights = detached(select(self.model, self.stage.shared))
        images = torch.from_numpy(Synthetic(samples=IMAGES, size=8, channels=1).load().images)
        net.notes = self.stage.first_notes(net, IMAGES)
        extras = detached(self.stage.extras(net, preset("digits").plain(images).split(16)))
        self.honest = [
            Update(client, self.stage.name, 1, IMAGES, 0.5, weights, extras) for client in range(2)
        ]
        tasks = [Task(client, self.stage.name, 1, weights) for client in range(2)]
        self.checker = checker_for(self.stage, tasks, Limits(10.0), lambda client: IMAGES)

    def receive(self, changes):
        """Assert that the changed reply is refused, or that it is harmless."""
        update = self.honest[HOSTILE]
        weights, extras = (
            _changed_state(
                getattr(update, part), [c for c in changes if c[0] in ("tensor", "names") and c[1] == part]
            )
            for part in (wire.WEIGHTS, wire.EXTRAS)
        )
        records = wire.pack_reply(wire.Reply(replace(update, weights=weights, extras=extras), 1.0))
        try:
            answer = wire.unpack_reply(_change_records(records, changes), HOSTILE)
        except wire.UnreadableError as error:
            _assert_sentence(str(error))
            return
        if isinstance(answer, wire.Failure):
            _assert_printable(answer.reason)
        else:
            assert 0 <= answer.seconds < math.inf
            self._check(answer.update)

    def _check(self, update):
        accepted, refused = self.checker.check([self.honest[0], update])
        assert accepted[0] is self.honest[0]
        for each in refused:
            _assert_sentence(each.reason)
        if len(accepted) == 2:
            assert update.samples == IMAGES
            assert update.loss is None or abs(update.loss) <= MAX_LOSS
            states = (update.weights, self.honest[1].weights), (update.extras, self.honest[1].extras)
            if not all(equal_states(*pair) for pair in states):
                combined = self.stage.combine(accepted, self.model)
                assert not value_error(combined.weights)
                assert not value_error(combined.extras)


def _assert_printable(text):
    assert text.isprintable()
    assert len(text) <= 400


def _assert_sentence(text):
    _assert_printable(text)
    assert text.endswith(".")


def _fuzz(check, examples):
    """Call the function with this number of random lists of changes, the same in every run."""
    options: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None}
    options |= {"suppress_health_check": list(HealthCheck), "phases": (Phase.generate, Phase.shrink)}
    settings(max_examples=examples, **options)(given(st.lists(CHANGES, min_size=1, max_size=3))(check))()


def test_a_random_reply_is_refused_or_gives_a_finite_model(case):
    _fuzz(Target(case).receive, FAST)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [(name, n) for name in STAGES for n in range(STAGES[name])])
def test_many_random_replies_are_refused_or_give_a_finite_model(cases, name, number):
    of_method = [case for case in cases if f"{case.name} {case.registry}" == name]
    assert len(of_method) == STAGES[name]
    _fuzz(Target(of_method[number]).receive, min(SLOW, EXPENSIVE.get(str(of_method[number]), SLOW)))


def _receive_hello(changes):
    records = _change_records(wire.pack_hello(HELLO), [change for change in changes if change[0] != "names"])
    try:
        answer = wire.unpack_hello(records)
    except wire.UnreadableError as error:
        _assert_sentence(str(error))
        return
    if isinstance(answer, wire.Failure):
        _assert_printable(answer.reason)
        return
    assert all(0 < getattr(answer, key) <= most for key, most in wire.HELLO_LIMITS.items())
    for text in (answer.name, answer.version, answer.fingerprint):
        _assert_printable(text)


def test_a_random_hello_is_refused_or_within_its_limits():
    _fuzz(_receive_hello, SLOW)


@pytest.mark.parametrize("content", [{}, {"facts": ArrayRecord()}, {"more": ConfigRecord({"failure": "a"})}])
def test_records_without_facts_are_refused(content):
    for unpack in (wire.unpack_hello, lambda records: wire.unpack_reply(records, 0)):
        with pytest.raises(wire.UnreadableError, match=r"^The message has no facts\.$"):
            unpack(RecordDict(content))
