"""Registry of engines, which run the clients' tasks; a new one is a file here and a line in ENGINES."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from fedmcc.federation.client import Client
from fedmcc.federation.engines.base import Engine, Simulation
from fedmcc.federation.engines.embedded import EmbeddedOptions
from fedmcc.federation.engines.pool import PoolOptions
from fedmcc.networks.momentum import Network


@runtime_checkable
class EngineOptions(Protocol):
    """A frozen dataclass whose fields are the options of an engine."""

    def resolve(self) -> "EngineOptions":
        """The options with defaults that depend on the machine filled in."""

    def build(self, net: Network, make: Callable[[], Network], clients: Sequence[Client]) -> Simulation:
        """The engine; `make` builds another network like `net`, in any process."""


ENGINES: dict[str, type[EngineOptions]] = {"embedded": EmbeddedOptions, "pool": PoolOptions}
"""Engines by name, each a frozen dataclass of options; `fedmcc list engines`.

Examples
--------
>>> from fedmcc import ENGINES
>>> sorted(ENGINES)
['embedded', 'pool']
"""

__all__ = ["ENGINES", "Engine", "EngineOptions", "Simulation"]
