"""The request for a run, and its form as the flat `run_config` that Flower passes to the server's process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedmcc.errors import InputError


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

    def run_config(self) -> dict[str, Any]:
        """The request as Flower's `run_config`."""
        policy = self.policy
        return {
            "recipe": self.recipe,
            "run": str(self.run),
            "sites": ",".join(policy.names),
            "nodes": ",".join(f"{name}:{node}" for name, node in policy.nodes),
            "min-sites": policy.min_sites,
            "wait": policy.wait,
            "round-timeout": policy.round_timeout,
        }


DEFAULTS: dict[str, Any] = RunRequest("", Path(), JoinPolicy()).run_config() | {"run": ""}


def read_request(run_config: Mapping[str, Any]) -> RunRequest:
    """The request in a `run_config`; missing keys have their default."""
    config = DEFAULTS | dict(run_config)
    names = [name.strip() for name in str(config["sites"]).split(",") if name.strip()]
    if len(set(names)) < len(names):
        raise InputError(f"sites is '{config['sites']}': name each site once.")
    if not config["run"]:
        raise InputError("run is empty: give the path of the run directory.")
    policy = JoinPolicy(
        names=tuple(names),
        nodes=tuple(_node(pair) for pair in str(config["nodes"]).split(",") if pair),
        min_sites=int(config["min-sites"]),
        wait=float(config["wait"]),
        round_timeout=float(config["round-timeout"]),
    )
    return RunRequest(str(config["recipe"]), Path(str(config["run"])), policy)


def _node(pair: str) -> tuple[str, int]:
    name, _, node = pair.strip().partition(":")
    if not node.isdecimal():
        raise InputError(f"nodes has '{pair}': write the name of a site and its node id, such as north:12.")
    return name, int(node)
