"""The options of a recipe that server and sites must agree on, and the hash that identifies them."""

import json
import tomllib
from hashlib import sha256

RESOLVED_SECTIONS = ("partition", "engine")  # which the server completes; a site does not use them
RESOLVED_KEYS = (  # which the server fills in if they are not set
    "views.size",
    "training.keep_optimizer",
    "encoder.sha256",
    "encoder.mean",
    "encoder.std",
)
SMALLEST = 10  # as runs.resolve sets it, which would load torch
AT_SITES = {"method.smallest": SMALLEST, "clustering.smallest": SMALLEST}  # if not set
LOCAL_KEYS = ("data.root", "encoder.path")  # differ between machines


def agreed_options(text: str) -> dict[str, object]:
    """The options of a TOML text by dotted keys, without the sections that the server completes."""
    options: dict[str, object] = dict(AT_SITES)
    for key, value in tomllib.loads(text).items():
        if isinstance(value, dict):
            options |= {f"{key}.{name}": each for name, each in value.items() if key not in RESOLVED_SECTIONS}
        else:
            options[key] = value
    return options


def recipe_hash(text: str) -> str:
    """SHA-256 of a complete recipe (`config.dump`): the same for a recipe file, its greeting and its tasks.

    Options that the server completes, and the path of the images, do not count.
    """
    left_out = (*RESOLVED_KEYS, *LOCAL_KEYS)
    options = {key: value for key, value in agreed_options(text).items() if key not in left_out}
    return sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
