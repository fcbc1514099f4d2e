"""Messages as they cross the wire, in text: every record, and in it every name, type and byte.

A site and a server of different versions understand each other as long as `wire.json` stays as it is.
A change that is meant to end this runs `python tests/golden/wire.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedmcc.deployment.flower import records
from fedmcc.deployment.flower.packets import pack
from fedmcc.deployment.messages import Greeting, Hello, SiteTask
from fedmcc.messages import StageRound, Task, Update

FILE = Path(__file__).with_name("wire.json")
WEIGHTS = {
    "online.encoder.weight": torch.arange(6.0).reshape(2, 3) / 8,
    "online.encoder.count": torch.tensor(7),
    "online.encoder.half": torch.tensor([0.5, -2.0], dtype=torch.float16),
}
EXTRAS = {
    "shares": torch.tensor([0.25, 0.75], dtype=torch.float64),
    "none": torch.empty(0, 4),
    "brain": torch.tensor([1.5, -0.5], dtype=torch.bfloat16),
    "int32": torch.tensor([-3], dtype=torch.int32),
    "int16": torch.tensor([258], dtype=torch.int16),
    "int8": torch.tensor([-1], dtype=torch.int8),
    "uint8": torch.tensor([255], dtype=torch.uint8),
    "truths": torch.tensor([True, False]),
}
TASK = Task(2, "joint", 5, WEIGHTS, EXTRAS, half=True)
FIRST = Task(0, "representation", 1, WEIGHTS)
UPDATE = Update(2, "joint", 5, 40, 0.5, WEIGHTS, EXTRAS)
UNTRAINED = Update(2, "whitening", 1, 40, None, {}, EXTRAS)
RECIPE = 'seed = 1\n[data]\nname = "digits"\n'

MESSAGES: dict[str, Any] = {
    "first order": SiteTask("abc", RECIPE, "f00d", None, FIRST),
    "order": SiteTask("abc", RECIPE, "f00d", StageRound("joint", 4), TASK),
    "update": records.Reply(UPDATE, 1.5),
    "update without training": records.Reply(UNTRAINED, 0.25),
    "failure": records.Failure("It has lost what it remembered.", forgot=True),
    "hello": Hello("site-a", 40, 1, 8, "0.1.0", "f00d"),
    "greeting": Greeting(RECIPE, ("abc", "def")),
    "text": "Site a has images of 3 channels.",
}


def packed(name: str) -> RecordDict:
    """A message of the list above as records."""
    pack = {
        SiteTask: records.pack_task,
        records.Reply: records.pack_reply,
        records.Failure: records.pack_failure,
        Hello: records.pack_hello,
        Greeting: records.pack_greeting,
        str: records.pack_text,
    }
    return pack[type(MESSAGES[name])](MESSAGES[name])


def packet(name: str) -> bytes:
    """A message of the list above as one value, as small messages are sent."""
    return bytes(pack(packed(name))[records.PACKET]["content"])


def unpacked(name: str, received: RecordDict) -> Any:
    """Records of a message of the list above as the message."""
    unpack = {
        SiteTask: records.unpack_task,
        records.Reply: lambda each: records.unpack_reply(each, client=2),
        records.Failure: lambda each: records.unpack_reply(each, client=2),
        Hello: records.unpack_hello,
        Greeting: records.unpack_greeting,
        str: records.unpack_text,
    }
    return unpack[type(MESSAGES[name])](received)


def written(sent: RecordDict) -> dict[str, Any]:
    """Records as JSON can hold them."""
    return {
        name: _facts(record) if isinstance(record, ConfigRecord) else _arrays(record)
        for name, record in sent.items()
    }


def read(text: Mapping[str, Any]) -> RecordDict:
    """Undoes `written` without any code of fedmcc."""
    kinds: dict[str, Any] = {"bytes": bytes.fromhex, "bool": bool, "int": int, "float": float, "str": str}
    received = RecordDict()
    for name, record in text.items():
        if record["record"] == "config":
            facts = {key: kinds[kind](value) for key, (kind, value) in record["facts"].items()}
            received[name] = ConfigRecord(facts)
        else:
            arrays = {key: _array(**array) for key, array in record["arrays"].items()}
            received[name] = ArrayRecord(arrays)
    return received


def _facts(record: ConfigRecord) -> dict[str, Any]:
    texts = {key: value.hex() if isinstance(value, bytes) else value for key, value in record.items()}
    return {"record": "config", "facts": {key: [type(record[key]).__name__, texts[key]] for key in record}}


def _arrays(record: ArrayRecord) -> dict[str, Any]:
    arrays = {
        key: {"dtype": each.dtype, "shape": list(each.shape), "stype": each.stype, "data": each.data.hex()}
        for key, each in record.items()
    }
    return {"record": "arrays", "arrays": arrays}


def _array(dtype: str, shape: list[int], stype: str, data: str) -> Array:
    return Array(dtype, tuple(shape), stype, bytes.fromhex(data))


if __name__ == "__main__":
    how = "Written by `python tests/golden/wire.py`; compared to the byte."
    messages = {name: written(packed(name)) for name in MESSAGES}
    packets = {name: packet(name).hex() for name in MESSAGES}
    FILE.write_text(json.dumps({"how": how, "messages": messages, "packets": packets}, indent=2) + "\n")
