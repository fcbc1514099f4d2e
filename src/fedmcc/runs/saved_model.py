"""A network with its configuration in one safetensors file, which is refused if its content was changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedmcc.config import Config, dump, parse_text
from fedmcc.errors import InputError
from fedmcc.networks.momentum import Network
from fedmcc.networks.prototypes import trim_as
from fedmcc.numerics.state_dicts import State, add_prefix, copy_into, detached, strip_prefix
from fedmcc.runs.build import build_network
from fedmcc.runs.resolve import without_first_weights
from fedmcc.storage.atomic_files import make_folder
from fedmcc.storage.safetensor_files import encoded_chunks, load_metadata, load_state, save_state
from fedmcc.training.torch_setup import set_up_torch

FORMAT = "1"


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A trained network, its complete configuration, further tensors, and facts as JSON values."""

    net: Network
    config: Config
    channels: int
    tensors: State
    facts: Mapping[str, Any]


def save_model(path: Path, model: SavedModel) -> None:
    """Write a model to one file."""
    state = add_prefix("net", detached(model.net.state_dict())) | add_prefix("more", model.tensors)
    metadata = {
        "fedmcc-model": FORMAT,
        "config": dump(model.config),
        "channels": str(model.channels),
        "facts": json.dumps(model.facts, sort_keys=True),
    }
    make_folder(path.parent, path.name)
    save_state(path, state, metadata | {"sha256": _digest(state, metadata)})


def load_model(path: Path) -> SavedModel:
    """Read a model; raise InputError if the file is not one, or if anything in it was changed."""
    metadata, state = load_metadata(path), load_state(path)
    if metadata.get("fedmcc-model") != FORMAT:
        raise InputError(f"{path} is not a model of this version of fedmcc: use a file that `save` wrote.")
    digest = metadata.pop("sha256", "")
    if digest != _digest(state, metadata):
        raise InputError(f"{path} was changed after it was written: restore it from a copy.")
    settings, channels = parse_text(metadata["config"], str(path)), int(metadata["channels"])
    set_up_torch(settings.general.thread_count)
    here = replace(settings, general=replace(settings.general, device="auto"))  # any device can load it
    net = build_network(without_first_weights(here), channels)
    own = strip_prefix("net", state)
    trim_as(net, {name: value.shape for name, value in own.items()})
    copy_into(net, own)
    return SavedModel(net, settings, channels, strip_prefix("more", state), json.loads(metadata["facts"]))


def _digest(state: State, metadata: Mapping[str, str]) -> str:
    """Hash of all tensors and texts of a file."""
    digest = sha256()
    for chunk in encoded_chunks(state, metadata):
        digest.update(bytes(chunk))  # hashlib takes one dimension only
    return digest.hexdigest()
