"""The request for a run, in a private file of the server.

Flower passes the `run_config` of a run to every site. It therefore has only the version of the protocol and
the name of this file, which the server's process finds in its FLWR_HOME.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from fedmcc.deployment import PROTOCOL
from fedmcc.deployment.setup.layout import PRIVATE_MODE, make_private_folders
from fedmcc.errors import InputError
from fedmcc.storage.atomic_files import write_atomically


class JoinPolicy(NamedTuple):
    """Which sites the server accepts, how many it needs, and how long it waits for them."""

    names: tuple[
        str, ...
    ] = ()  # the sites of the federation; empty: the sites that are connected at the start
    min_sites: int = 1
    wait: float = 3600.0  # seconds to wait for sites
    round_timeout: float = 3600.0  # seconds that a site has for a round
    nodes: tuple[tuple[str, int], ...] = ()  # Flower's node id of each site; empty: ids are not checked
    retry_seconds: float = 60.0  # until a site that was rejected, or did not answer, is greeted again


class RunRequest(NamedTuple):
    """A run as the operator requests it."""

    recipe: str  # TOML
    run: Path  # the run directory, which is created if it does not exist
    policy: JoinPolicy
    federation: Path | None = None  # the operator's folder, with the keys; None: a simulation without keys


def write_request(home: Path, request: RunRequest) -> dict[str, Any]:
    """Write a request to a file that only the server's user can read; returns the `run_config` for Flower."""
    name = uuid4().hex
    make_private_folders([_folder(home)])
    federation = None if request.federation is None else str(request.federation)
    table = {"recipe": request.recipe, "run": str(request.run), "federation": federation}
    text = json.dumps({**table, "policy": request.policy._asdict()})
    write_atomically(_folder(home) / f"{name}.json", text, PRIVATE_MODE)
    return {"protocol": PROTOCOL, "request": name}


def take_request(home: Path, run_config: Mapping[str, Any]) -> RunRequest:
    """Read the request that a `run_config` names, and delete its file."""
    name = str(run_config.get("request", ""))
    file = _folder(home) / f"{name}.json"
    if not name.isalnum() or not file.exists():
        raise InputError("The run has no request: start it with `fedmcc server start`.")
    table = json.loads(file.read_text())
    file.unlink()
    policy = table["policy"]
    policy |= {
        "names": tuple(policy["names"]),
        "nodes": tuple((site, node) for site, node in policy["nodes"]),
    }
    federation = table["federation"] and Path(table["federation"])
    return RunRequest(table["recipe"], Path(table["run"]), JoinPolicy(**policy), federation)


def _folder(home: Path) -> Path:
    return home / "requests"
